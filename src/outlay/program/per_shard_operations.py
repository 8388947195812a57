"""Run operations that XLA does not split on each device's own entries, where their batch dims are split.

XLA gathers the whole batch to every device for each FFT of it, on CPUs and GPUs, and cuDNN's attention is refused where
weights rather than samples are split. Such operations of a traced step are put into `jax.shard_map`, over the axes that
hold their batch dims (`propagated_splits.py`). A step without them is not run again, and none of this is imported for
it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from outlay.core.jax_tracing import operations, run_jaxpr
from outlay.program.independent_dims import (
    CUMULATIVE,
    FFT,
    Factors,
    Independent,
    independent,
    is_fft_that_ends_xla,
)
from outlay.program.passes import Planned
from outlay.program.propagated_splits import WEAK, Inner, Propagation, Split, axes_of, joined, split_of


def wrap(function: Callable[..., Any], planned: Planned) -> Callable[..., Any]:
    """Wrap a function of state and batch that runs the step: operations that XLA does not split run on shards.

    Its first results are those of the step.
    """
    mesh, names, (state, batch) = planned.mesh, planned.not_split, planned.shardings()
    # Where both claim an axis, the batch has it.
    given = [_split(one, rank) for tree, rank in ((state, 1), (batch, 0)) for one in jax.tree.leaves(tree)]
    results = state if planned.returns_state else ()

    @functools.wraps(function, updated=())
    def run(*args: Any) -> Any:
        # The lambda is a new function each time, so JAX cannot return a cached trace.
        jaxpr, result = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
        values = [Value(*both) for both in zip(jax.tree.leaves(args), given, strict=True)]
        leaves = Rewriting(mesh, names).run(jaxpr, values, _asked(jaxpr, results))
        return jax.tree.unflatten(jax.tree.structure(result), leaves)

    return run


def per_shard_in(jaxpr: ClosedJaxpr, results: Any, mesh: Mesh, names: frozenset[str]) -> Callable[..., list[Any]]:
    """Return a traced program of arguments that are whole as a function in which operations run on shards.

    Args:
        jaxpr: the program.
        results: a tree of the shardings of its results.
        mesh: the mesh, with automatic axes.
        names: the names of the operations.
    """

    def run(*args: Any) -> list[Any]:
        values = [Value(leaf, {}) for leaf in jax.tree.leaves(args)]
        return Rewriting(mesh, names).run(jaxpr, values, _asked(jaxpr, results))

    return run


def per_shard_in_region(
    function: Callable[..., Any], names: frozenset[str], mesh: Mesh, splits: Sequence[Split]
) -> Callable[..., Any]:
    """Return a function with operations on shards, for a region of `jax.shard_map` over some axes.

    Args:
        function: the function.
        names: the names of the operations.
        mesh: the whole mesh.
        splits: how the leaves of its arguments are split over the other axes.
    """

    @functools.wraps(function, updated=())
    def run(*args: Any) -> Any:
        jaxpr, result = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
        values = [Value(*both) for both in zip(jax.tree.leaves(args), splits, strict=True)]
        leaves = Rewriting(mesh, names).run(jaxpr, values, [{} for _ in jaxpr.jaxpr.outvars])
        return jax.tree.unflatten(jax.tree.structure(result), leaves)

    return run


def _split(sharding: Any, rank: int) -> Split:
    return split_of(sharding.spec, rank) if isinstance(sharding, NamedSharding) else {}


def _asked(jaxpr: ClosedJaxpr, results: Any) -> list[Split]:
    """Return how the results of a program are to be split, as far as that is known."""
    asked = [_split(one, WEAK) for one in jax.tree.leaves(results)]
    return [*asked, *({} for _ in jaxpr.jaxpr.outvars[len(asked) :])]


@dataclass(frozen=True)
class Value:
    """An array while it is traced, and how it is split."""

    array: Any
    split: Split


class Rewriting:
    """Runs a traced program again, also inside a region of `jax.shard_map` over some axes of the mesh."""

    def __init__(self, mesh: Mesh, names: frozenset[str]) -> None:
        self._mesh, self._names = mesh, names
        inside = jax.sharding.get_abstract_mesh()
        self._own = {axis for axis in mesh.axis_names if axis not in inside.manual_axes}
        self._around = inside if inside.manual_axes else mesh
        sizes = {axis: size for axis, size in mesh.shape.items() if size > 1 and axis in self._own}
        self._follow = Propagation(sizes)
        self._platform = mesh.devices.flat[0].platform
        self._is_on_cpu = self._platform == "cpu"

    def run(self, jaxpr: Any, values: Sequence[Any], asked: Sequence[Split]) -> list[Any]:
        """Run a program; `asked` has the splits that the users of its results prefer."""
        known = self._follow.forward(jaxpr, [value.split for value in values])
        suiting = self._follow.backward(jaxpr, known, asked)

        def evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
            arrays = [value.array if isinstance(value, Value) else value for value in values]
            splits: list[Split] = [value.split if isinstance(value, Value) else {} for value in values]
            after = [joined(known[one], suiting.get(one, {})) for one in eqn.outvars]
            if eqn.primitive.name in self._names:
                results = self._per_shard(eqn, arrays, splits, after, bind)
            elif any(inner.primitive.name in self._names for inner in _inside(eqn)):
                results = self._with_others(eqn, arrays, splits, after)
            else:
                results = bind(*arrays)
            return [Value(*both) for both in zip(results, after, strict=True)]

        return [one.array if isinstance(one, Value) else one for one in run_jaxpr(jaxpr, values, evaluate)]

    def _with_others(self, eqn: Any, arrays: list[Any], splits: list[Split], after: list[Split]) -> list[Any]:
        """Run an operation that holds programs with others in their place; all else of it stays as it was traced."""
        params = dict(eqn.params)
        for inner in self._follow.inside(eqn, splits, after):
            other = self._rewritten(inner)
            if inner.place is None:
                params[inner.param] = other
            elif isinstance(inner.place, int):
                params[inner.param] = tuple(
                    other if place == inner.place else one for place, one in enumerate(params[inner.param])
                )
            else:
                params[inner.param] = params[inner.param]._replace(**{inner.place: other})
        results = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(params))
        return results if eqn.primitive.multiple_results else [results]

    def _rewritten(self, inner: Inner) -> Jaxpr | ClosedJaxpr:
        def run(*arrays: Any) -> list[Any]:
            values = [Value(*both) for both in zip(arrays, inner.splits, strict=True)]
            return self.run(inner.jaxpr, values, inner.asked)

        is_closed = isinstance(inner.jaxpr, ClosedJaxpr)
        variables = (inner.jaxpr.jaxpr if is_closed else inner.jaxpr).invars
        other = jax.make_jaxpr(run)(*(variable.aval for variable in variables))
        return other if is_closed else other.jaxpr

    def _per_shard(
        self,
        eqn: Any,
        arrays: list[Any],
        splits: list[Split],
        after: list[Split],
        bind: Callable[..., list[Any]],
    ) -> list[Any]:
        factors = independent(eqn)
        if factors is None:
            return bind(*arrays)
        axes = self._axes(eqn, factors, splits, after)
        is_fft_on_cpu = eqn.primitive.name == FFT and self._is_on_cpu
        # Where XLA will have a dim split is not known for certain, so it may be over all devices.
        ends = is_fft_that_ends_xla(eqn, lambda dim: self._mesh.size, self._platform)
        # In a region, JAX does not tell cuDNN's attention how its operands are split.
        is_left = self._around is self._mesh and eqn.primitive.name not in CUMULATIVE
        if not axes and not is_fft_on_cpu and not ends and is_left:
            return bind(*arrays)

        def of_shards(*shards: Any) -> Any:
            if not is_fft_on_cpu:
                return bind(*shards)
            # XLA's CPU compiler gives an FFT's operand and result any order in memory, and its runtime then refuses it.
            return [in_rows(result) for result in bind(*map(in_rows, shards))]

        # check_vma is off: cuDNN's operations do not say over which axes their results vary.
        return jax.shard_map(
            of_shards,
            mesh=self._around,
            axis_names=self._own,
            in_specs=tuple(_spec(of_dims, axes) for of_dims in factors.operands),
            out_specs=[_spec(of_dims, axes) for of_dims in factors.results],
            check_vma=False,
        )(*arrays)

    def _axes(
        self, eqn: Any, factors: Independent, splits: list[Split], after: list[Split]
    ) -> dict[Hashable, tuple[str, ...]]:
        """Return the mesh axes of each factor that divide all dims of the factor."""
        shapes = [variable.aval.shape for variable in (*eqn.invars, *eqn.outvars)]
        sizes: dict[Hashable, set[int]] = {}
        for of_dims, shape in zip((*factors.operands, *factors.results), shapes, strict=True):
            for factor, size in zip(of_dims, shape, strict=True):
                sizes.setdefault(factor, set()).add(size)
        axes: dict[Hashable, tuple[str, ...]] = {}
        parts: dict[Hashable, int] = {}
        for axis, (factor, _) in axes_of([*factors.operands, *factors.results], [*splits, *after]).items():
            num = parts.get(factor, 1) * self._mesh.shape[axis]
            if all(size and size % num == 0 for size in sizes[factor]):
                axes[factor], parts[factor] = (*axes.get(factor, ()), axis), num
        return axes


def _spec(of_dims: Factors, axes: Mapping[Hashable, tuple[str, ...]]) -> PartitionSpec:
    return PartitionSpec(*(axes.get(factor) if factor is not None else None for factor in of_dims))


def in_rows(array: jax.Array) -> jax.Array:
    """Have an array in memory in the order of its dims, the last one fastest."""
    return with_layout_constraint(array, Layout(tuple(range(array.ndim))))


def _inside(eqn: Any) -> Iterator[Any]:
    return (one for inner in jaxprs_in_params(eqn.params) for one in operations(inner))
