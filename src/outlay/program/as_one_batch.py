"""Compute a function of the whole batch on devices that each hold some samples, as BatchNorm needs in mode manual.

The function is traced twice: for one device's samples and for all. A dim whose size differs holds samples, and the two
traces are run side by side. An operation that treats each sample by itself runs as traced for one device. One that
sums over samples (a mean, a product) is summed over the devices, and numbers computed from the batch size are those of
the whole batch. For any other, such as a sort over the samples, the samples are gathered and it runs as on one device,
which is always right. So the result is that of the single-device run, and no model has to name an axis.
`sample_dims.py` classifies the operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, jaxprs_in_params
from jax.sharding import Mesh

from outlay.core.constrain import gathering
from outlay.core.error_types import ProgramError
from outlay.core.jax_source import source_line
from outlay.core.jax_tracing import CALLS, CHECKPOINTS, SCAN, Operations, rerun_scan, run_jaxpr
from outlay.program.sample_dims import WHOLE, is_local, sample_dim, sums_samples
from outlay.program.shard_collectives import gather


class NeedsOneBatch(Exception):
    """Raised when a loss of one number per sample asks for the whole batch."""


class SpreadBatch:
    """The samples of a batch, spread over the devices of a mesh.

    Args:
        mesh: the mesh.
        axes: those of its axes that split the batch.
        vary: marks a value as each device's own.
        always: whether every loss is computed as over the whole batch.
    """

    def __init__(
        self, mesh: Mesh, axes: tuple[str, ...], vary: Callable[[jax.Array], jax.Array], *, always: bool
    ) -> None:
        self.num_devices = math.prod(mesh.shape[axis] for axis in axes)
        self._mesh, self._axes, self._vary, self._always = mesh, axes, vary, always

    def is_needed(self, function_is_global: bool) -> bool:
        """Return whether a loss must be computed as over the whole batch."""
        return self.num_devices > 1 and (function_is_global or self._always)

    def gather(self, tree: Any) -> Any:
        """Gather the samples of all devices; only where a loss is computed as over the whole batch."""
        if self.num_devices > 1 and not self._always:
            raise NeedsOneBatch
        return jax.tree.map(lambda x: self.whole(x, 0), tree)

    def mean(self, tree: Any) -> Any:
        """Average float arrays over devices; others are the same on all."""

        def one(x: jax.Array) -> jax.Array:
            if self.num_devices == 1 or not jnp.issubdtype(x.dtype, jnp.inexact):
                return x
            return self._vary(jax.lax.psum(x, self._axes) / self.num_devices)

        return jax.tree.map(one, tree)

    def whole(self, x: jax.Array, dim: int) -> jax.Array:
        """Gather an array's samples, along a dim, from all devices."""
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            bits = self.whole(jax.random.key_data(x), dim)
            return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(x))
        return gather(x, self._mesh, self._axes, dim)

    def own(self, x: jax.Array, dim: int) -> jax.Array:
        """Cut this device's samples out of an array of all samples."""
        size = x.shape[dim] // self.num_devices
        return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(self._axes) * size, size, dim)

    def total(self, x: jax.Array) -> jax.Array:
        """Sum over devices, marked as varying so that the trace can go on with it."""
        return self._vary(jax.lax.psum(x, self._axes))

    def as_one(self, function: Callable[[Any, Any], Any], whole: Any, samples: Any) -> Any:
        """Compute `function(whole, samples)` as a single device would from all samples.

        Args:
            function: takes replicated values and samples.
            whole: the replicated values.
            samples: this device's samples, each leaf with one entry per sample.

        Returns:
            Its results: entries per sample for this device's samples; anything else as for all samples.

        Raises:
            ProgramError: the function runs different operations for another number of samples.
        """
        every = jax.eval_shape(lambda tree: jax.tree.map(self._repeated, tree), samples)
        with gathering(_marked(jnp.copy)):
            of_all = jax.make_jaxpr(function)(whole, every)
        with gathering(_marked(lambda x: self.whole(x, 0))):
            of_own, results = jax.make_jaxpr(function, return_shape=True)(whole, samples)
        values = self._run(of_all, of_own, jax.tree.leaves((whole, samples)))
        return jax.tree.unflatten(jax.tree.structure(results), values)

    def _repeated(self, x: jax.Array) -> jax.Array:
        return jnp.concatenate([x] * self.num_devices)

    def _run(self, of_all: Any, of_own: Any, values: Sequence[Any]) -> list[Any]:
        """Run two traces of one function side by side."""
        consts = list(map(self._constant, getattr(of_all, "consts", ()), getattr(of_own, "consts", ())))
        of_all, of_own = getattr(of_all, "jaxpr", of_all), getattr(of_own, "jaxpr", of_own)
        _check_same_operations(of_all, of_own)
        others = iter(of_all.eqns)

        def evaluate(own: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
            return self._evaluate(next(others), own, values, bind)

        results = run_jaxpr(of_own, [*consts, *values], evaluate)
        return _numbers_of(of_all.outvars, results)

    def _constant(self, of_all: Any, of_own: Any) -> Any:
        dim = sample_dim(of_all, of_own)
        return of_all if dim is None else self.own(jnp.asarray(of_all), dim)

    def _evaluate(self, all_: Any, own: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
        """Run one operation on this device's samples."""
        values = _numbers_of(all_.invars, values)
        name, inner = own.primitive.name, [*zip(*(jaxprs_in_params(eqn.params) for eqn in (all_, own)), strict=True)]
        if own.params.get("name") == WHOLE or is_local(all_, own):
            return bind(*values)
        if name in CALLS:
            return self._run(inner[0][0], inner[0][1], values)
        if name in CHECKPOINTS and not own.params["differentiated"]:
            inside = functools.partial(self._run_flat, *inner[0])
            how = {"policy": own.params["policy"], "prevent_cse": own.params["prevent_cse"]}
            return jax.checkpoint(inside, **how)(*values)
        if name == SCAN and all_.params["length"] == own.params["length"]:
            return rerun_scan(own.params, values, lambda turn: self._run(inner[0][0], inner[0][1], turn))
        if sums_samples(all_, own):
            return [self.total(x) for x in bind(*values)]
        return self._done_whole(all_, own, values)

    def _run_flat(self, of_all: Any, of_own: Any, *values: Any) -> list[Any]:
        return self._run(of_all, of_own, values)

    def _done_whole(self, all_: Any, own: Any, values: Sequence[Any]) -> list[Any]:
        """Run an operation on all samples, as a single device would."""
        dims = [sample_dim(*atoms) for atoms in zip(all_.invars, own.invars, strict=True)]
        whole = [x if dim is None else self.whole(x, dim) for x, dim in zip(values, dims, strict=True)]
        read = {atom: x for atom, x in zip(all_.invars, whole, strict=True) if not isinstance(atom, Literal)}
        alone = Operations([all_], list(read), all_.outvars)
        results = run_jaxpr(alone, [*read.values()], lambda eqn, values, bind: bind(*values))
        after = [sample_dim(*atoms) for atoms in zip(all_.outvars, own.outvars, strict=True)]
        return [x if dim is None else self.own(x, dim) for x, dim in zip(results, after, strict=True)]


def _numbers_of(atoms: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Replace constants that were computed from the batch size by those of the whole batch."""
    return [atom.val if isinstance(atom, Literal) else value for atom, value in zip(atoms, values, strict=True)]


def _marked(gather: Callable[[jax.Array], jax.Array]) -> Callable[[Any], Any]:
    """Return a gather that is traced as a single operation."""

    # A jit of this name is one operation in both traces; inlined, they would differ by the collective.
    def gathered(x: jax.Array) -> jax.Array:
        return gather(x)

    gathered.__name__ = WHOLE
    return lambda tree: jax.tree.map(lambda x: jax.jit(gathered)(x), tree)


def _check_same_operations(of_all: Any, of_own: Any) -> None:
    have, want = ([eqn.primitive.name for eqn in jaxpr.eqns] for jaxpr in (of_own, of_all))
    if have == want:
        return
    first = next((i for i, (a, b) in enumerate(zip(have, want, strict=False)) if a != b), min(len(have), len(want)))
    eqns = of_all.eqns[first:] or of_own.eqns[first:]
    names = [f"{names[first]!r}" if first < len(names) else "nothing" for names in (have, want)]
    at = source_line(eqns[0])
    raise ProgramError(
        f"{at + ': ' if at else ''}the loss runs different operations for a device's samples than for the whole batch "
        f"({names[0]} instead of {names[1]}), so mode manual cannot tell what it means over all samples\n"
        "  fix: do not let Python decide by the size of the batch, give each device more than one sample, or "
        "mode='auto'"
    )
