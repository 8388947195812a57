"""Compute a function of the whole batch on devices that each hold some samples, as BatchNorm needs in mode manual.

The function is traced twice: for one device's samples and for all. A dim whose size differs holds samples, and the two
traces are run side by side. An operation that treats each sample by itself runs as traced for one device. One that
sums over samples (a mean, a product) is summed over the devices, and numbers computed from the batch size are those of
the whole batch. For any other, such as a sort over the samples, the samples are gathered and it runs as on one device,
which is always right. So the result is that of the single-device run, and no model has to name an axis.
`batch_locality.py` classifies the operations.
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

from outlay.core.constrain import use_gather
from outlay.core.error_types import ProgramError
from outlay.core.jax_source import source_line
from outlay.core.jax_tracing import CALLS, CHECKPOINTS, SCAN, Operations, rerun_scan, run_jaxpr
from outlay.program.batch_locality import WHOLE, is_local, sample_dim, sums_samples
from outlay.program.shard_collectives import gather


class NeedsGlobalBatch(Exception):
    """Raised when a loss of one number per sample asks for the whole batch."""


class GlobalBatch:
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
            raise NeedsGlobalBatch
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

    def global_result(self, function: Callable[[Any, Any], Any], whole: Any, samples: Any) -> Any:
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
        with use_gather(_marked(jnp.copy)):
            global_jaxpr = jax.make_jaxpr(function)(whole, every)
        with use_gather(_marked(lambda x: self.whole(x, 0))):
            local_jaxpr, results = jax.make_jaxpr(function, return_shape=True)(whole, samples)
        values = self._run(global_jaxpr, local_jaxpr, jax.tree.leaves((whole, samples)))
        return jax.tree.unflatten(jax.tree.structure(results), values)

    def _repeated(self, x: jax.Array) -> jax.Array:
        return jnp.concatenate([x] * self.num_devices)

    def _run(self, global_jaxpr: Any, local_jaxpr: Any, values: Sequence[Any]) -> list[Any]:
        """Run two traces of one function side by side."""
        consts = list(map(self._constant, getattr(global_jaxpr, "consts", ()), getattr(local_jaxpr, "consts", ())))
        global_jaxpr, local_jaxpr = (getattr(jaxpr, "jaxpr", jaxpr) for jaxpr in (global_jaxpr, local_jaxpr))
        _check_same_operations(global_jaxpr, local_jaxpr)
        others = iter(global_jaxpr.eqns)

        def evaluate(local_eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
            return self._evaluate(next(others), local_eqn, values, bind)

        results = run_jaxpr(local_jaxpr, [*consts, *values], evaluate)
        return _numbers_of(global_jaxpr.outvars, results)

    def _constant(self, whole: Any, local: Any) -> Any:
        dim = sample_dim(whole, local)
        return whole if dim is None else self.own(jnp.asarray(whole), dim)

    def _evaluate(
        self, global_eqn: Any, local_eqn: Any, values: list[Any], bind: Callable[..., list[Any]]
    ) -> list[Any]:
        """Run one operation on this device's samples."""
        values = _numbers_of(global_eqn.invars, values)
        name = local_eqn.primitive.name
        inner = [*zip(*(jaxprs_in_params(eqn.params) for eqn in (global_eqn, local_eqn)), strict=True)]
        if local_eqn.params.get("name") == WHOLE or is_local(global_eqn, local_eqn):
            return bind(*values)
        if name in CALLS:
            return self._run(inner[0][0], inner[0][1], values)
        if name in CHECKPOINTS and not local_eqn.params["differentiated"]:
            inside = functools.partial(self._run_flat, *inner[0])
            how = {"policy": local_eqn.params["policy"], "prevent_cse": local_eqn.params["prevent_cse"]}
            return jax.checkpoint(inside, **how)(*values)
        if name == SCAN and global_eqn.params["length"] == local_eqn.params["length"]:
            return rerun_scan(local_eqn.params, values, lambda operands: self._run(inner[0][0], inner[0][1], operands))
        if sums_samples(global_eqn, local_eqn):
            return [self.total(x) for x in bind(*values)]
        return self._run_globally(global_eqn, local_eqn, values)

    def _run_flat(self, global_jaxpr: Any, local_jaxpr: Any, *values: Any) -> list[Any]:
        return self._run(global_jaxpr, local_jaxpr, values)

    def _run_globally(self, global_eqn: Any, local_eqn: Any, values: Sequence[Any]) -> list[Any]:
        """Run an operation on all samples, as a single device would."""
        dims = [sample_dim(*atoms) for atoms in zip(global_eqn.invars, local_eqn.invars, strict=True)]
        whole = [x if dim is None else self.whole(x, dim) for x, dim in zip(values, dims, strict=True)]
        read = {atom: x for atom, x in zip(global_eqn.invars, whole, strict=True) if not isinstance(atom, Literal)}
        alone = Operations([global_eqn], list(read), global_eqn.outvars)
        results = run_jaxpr(alone, [*read.values()], lambda eqn, values, bind: bind(*values))
        after = [sample_dim(*atoms) for atoms in zip(global_eqn.outvars, local_eqn.outvars, strict=True)]
        return [x if dim is None else self.own(x, dim) for x, dim in zip(results, after, strict=True)]


def _numbers_of(atoms: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Replace constants that were computed from the batch size by the whole batch's."""
    return [atom.val if isinstance(atom, Literal) else value for atom, value in zip(atoms, values, strict=True)]


def _marked(gather: Callable[[jax.Array], jax.Array]) -> Callable[[Any], Any]:
    """Return a gather that is traced as a single operation."""

    # A jit of this name is one operation in both traces; inlined, they would differ by the collective.
    def gathered(x: jax.Array) -> jax.Array:
        return gather(x)

    gathered.__name__ = WHOLE
    return lambda tree: jax.tree.map(lambda x: jax.jit(gathered)(x), tree)


def _check_same_operations(global_jaxpr: Any, local_jaxpr: Any) -> None:
    have, want = ([eqn.primitive.name for eqn in jaxpr.eqns] for jaxpr in (local_jaxpr, global_jaxpr))
    if have == want:
        return
    first = next((i for i, (a, b) in enumerate(zip(have, want, strict=False)) if a != b), min(len(have), len(want)))
    eqns = global_jaxpr.eqns[first:] or local_jaxpr.eqns[first:]
    names = [f"{names[first]!r}" if first < len(names) else "nothing" for names in (have, want)]
    at = source_line(eqns[0])
    raise ProgramError(
        f"{at + ': ' if at else ''}the loss runs different operations for a device's samples than for the whole batch "
        f"({names[0]} instead of {names[1]}), so mode manual cannot tell what it means over all samples\n"
        "  fix: do not let Python decide by the size of the batch, give each device more than one sample, or "
        "mode='auto'"
    )
