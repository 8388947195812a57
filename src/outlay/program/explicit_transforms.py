"""Run FFTs on Explicit axes with the dims that they go along whole, and each device its own entries of the others.

XLA gathers the whole batch for an FFT there, too, its compiler for CPUs lays operands out as its runtime refuses, and
before JAX 0.12 a complex FFT along a split dim may end the process. The types say how each operand is split, so nothing
has to be guessed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from outlay.program.independent_dims import FFT, independent
from outlay.program.passes import Planned
from outlay.program.per_shard_operations import Rewriting, Value, in_rows
from outlay.program.propagated_splits import Split


def wrap(function: Callable[..., Any], planned: Planned) -> Callable[..., Any]:
    """Wrap a function of state and batch so that FFTs of its trace run on shards.

    It is traced with the types of its arguments.
    """
    mesh = planned.mesh

    @functools.wraps(function, updated=())
    def run(*args: Any) -> Any:
        # The lambda is a new function each time, so JAX cannot return a cached trace.
        jaxpr, result = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
        values = [Value(leaf, {}) for leaf in jax.tree.leaves(args)]
        leaves = _OnExplicitAxes(mesh, frozenset([FFT])).run(jaxpr, values, [{}] * len(jaxpr.out_avals))
        return jax.tree.unflatten(jax.tree.structure(result), leaves)

    return run


class _OnExplicitAxes(Rewriting):
    """Runs a traced program again, with the splits that its types have."""

    def _per_shard(
        self, eqn: Any, arrays: list[Any], splits: list[Split], after: list[Split], bind: Callable[..., list[Any]]
    ) -> list[Any]:
        aval, factors = eqn.invars[0].aval, independent(eqn)
        if factors is None or not aval.sharding.mesh.are_all_axes_explicit:  # in the user's own shard_map
            return bind(*arrays)
        entries: dict[Hashable, Any] = dict(enumerate(aval.sharding.spec))
        whole = PartitionSpec(*(entries.get(factor) if factor is not None else None for factor in factors.operands[0]))

        def of_shards(shard: Any) -> Any:
            return [in_rows(bind(in_rows(shard))[0])] if self._is_on_cpu else bind(shard)

        operand = jax.sharding.reshard(arrays[0], whole)
        (result,) = jax.shard_map(of_shards, mesh=self._mesh, in_specs=(whole,), out_specs=[whole])(operand)
        return [jax.sharding.reshard(result, eqn.outvars[0].aval.sharding.spec)]
