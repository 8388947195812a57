"""Read each layer where it is used, in both passes, and add its gradient to the sums there.

A loop reads its layers from stacks that no turn changes. JAX keeps for each turn what the backward pass needs, and so
the layer of each turn, or what is cast of it: layers once more for each tick of a pipeline. And the gradient of a stack
is one of its shape from each turn. Here a turn is differentiated by hand: the backward pass reads the layer again,
computes again what comes of the layer alone, and adds the layer's gradient to its entry of the sums, which the backward
loops carry. Forward they are carried too, as zeros that nobody reads, which XLA drops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from outlay.core.jax_needed_operations import needed_for
from outlay.core.jax_tracing import plain_vjp, run_jaxpr

if TYPE_CHECKING:
    from outlay.program.pipelines.sums_in_parts import SplitBatch


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def sums_of(x: jax.Array, num_parts: int = 1, at: int = 0) -> jax.Array:
    """Return zeros whose gradient is that of an array: what `run_layer` has added to them.

    Args:
        x: the array.
        num_parts: how many such arrays there are, which the gradient is the sum of.
        at: the dim in which they lie one after the other, if there are several.
    """
    return jnp.zeros(x.shape if num_parts == 1 else (*x.shape[:at], num_parts, *x.shape[at:]), x.dtype)


sums_of.defvjp(
    lambda x, *how: (sums_of(x, *how), None),
    lambda num_parts, at, _, sums: (sums if num_parts == 1 else jnp.sum(sums, axis=at),),
)

Run = Callable[[list[Any], list[Any]], list[Any]]
"""Runs a layer: takes its arrays and all others, and returns the results."""


def run_layer(
    run: Run,
    stacks: list[Any],
    sums: list[Any | None],
    number: Any,
    others: list[Any],
    batch: SplitBatch | None = None,
) -> tuple[list[Any], list[Any | None]]:
    """Run a layer; return its results, and the sums to which its gradient is added.

    Args:
        run: runs it.
        stacks: the stacks of its arrays, which get no gradient of their own.
        sums: for each of these, from `sums_of`, with or without parts; None for a stack that has no gradient.
        number: which entry of the stacks it is.
        others: what else it takes.
        batch: how the leaves of that are split, where devices add up gradients each for itself; else None.
    """
    if not stacks:
        return run([], others), []
    passes: list[_BothPasses] = []  # of the last time that it was differentiated

    @jax.custom_vjp
    def layer(stacks: list[Any], sums: list[Any], number: Any, others: list[Any]) -> tuple[list[Any], list[Any]]:
        return run(_entries(stacks, number), others), sums

    def forward(stacks: list[Any], sums: list[Any], number: Any, others: list[Any]) -> Any:
        own = _entries(stacks, number)
        passes[:] = [_BothPasses(run, own, others, batch)]
        results, rest = passes[0].forward(own, others)
        return (results, sums), (stacks, number, rest)

    def backward(left: Any, gradients: tuple[list[Any], list[Any]]) -> tuple[Any, ...]:
        (stacks, number, rest), (of_results, so_far) = left, gradients
        in_parts = [i for i, (x, total) in enumerate(zip(stacks, so_far, strict=True)) if has_parts(total, x)]
        of_own, of_others = passes[0].backward(_entries(stacks, number), rest, of_results, in_parts)
        added = [None if total is None else _added(total, x, number) for total, x in zip(so_far, of_own, strict=True)]
        return [None] * len(stacks), added, None, of_others

    layer.defvjp(forward, backward)
    return layer(stacks, sums, number, others)


class _BothPasses:
    """A layer with its gradient, as two functions of which the second computes again what comes of the layer alone."""

    def __init__(self, run: Run, own: list[Any], others: list[Any], batch: SplitBatch | None) -> None:
        self._batch = batch
        self._both, results_and_pull = jax.make_jaxpr(functools.partial(plain_vjp, run), return_shape=True)(own, others)
        results, pull = results_and_pull
        self._num, self._tree = len(results), jax.tree.structure(pull)
        num = len(self._both.out_avals)
        needs_others = [
            any(needed_for(self._both, [of == one for of in range(num)])[1][len(own) :]) for one in range(num)
        ]
        self._is_own = [not needs for needs in needs_others[self._num :]]
        if batch is not None:
            splits = batch.of_results(self._both)
            of_rest = zip(splits[self._num :], self._is_own, strict=True)
            self._result_splits, self._rest_splits = splits[: self._num], [x for x, is_own in of_rest if not is_own]
        self._again, used = needed_for(self._both, [False] * self._num + self._is_own)
        self._used = used[: len(own)]

    def forward(self, own: list[Any], others: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the results, and what the backward pass needs and cannot compute from the layer alone."""
        values = _run(self._both, [*own, *jax.tree.leaves(others)])
        left = zip(values[self._num :], self._is_own, strict=True)
        return values[: self._num], [x for x, is_own in left if not is_own]

    def backward(
        self, own: list[Any], rest: list[Any], of_results: list[Any], in_parts: list[int]
    ) -> tuple[list[Any], list[Any]]:
        """Return the gradients of the layer, some of them in parts, and of all others."""
        if self._batch is None or not in_parts:
            return self._gradients(own, rest, of_results)
        given = [None if is_without_gradient(x) else x for x in of_results]

        def traced(own: list[Any], rest: list[Any], given: list[Any]) -> tuple[list[Any], list[Any]]:
            results = [x if one is None else one for x, one in zip(of_results, given, strict=True)]
            of_own, of_others = self._gradients(own, rest, results)
            return of_own, jax.tree.map(lambda x: None if is_without_gradient(x) else x, of_others)

        jaxpr, shapes = jax.make_jaxpr(traced, return_shape=True)(own, rest, given)
        of_given = [split for split, x in zip(self._result_splits, given, strict=True) if x is not None]
        splits = [*[{}] * len(own), *self._rest_splits, *of_given]
        gradients = self._batch.parts.run(jaxpr, jax.tree.leaves((own, rest, given)), splits, in_parts)
        return jax.tree.unflatten(jax.tree.structure(shapes), gradients)

    def _gradients(self, own: list[Any], rest: list[Any], of_results: list[Any]) -> tuple[list[Any], list[Any]]:
        again = iter(_run(self._again, [x for x, is_used in zip(own, self._used, strict=True) if is_used]))
        others = iter(rest)
        left = [next(again) if is_own else next(others) for is_own in self._is_own]
        return jax.tree.unflatten(self._tree, left)(of_results)


def has_parts(sums: Any, stack: Any) -> bool:
    """Return whether sums of the entries of a stack are in parts."""
    return sums is not None and sums.ndim > stack.ndim


def is_without_gradient(gradient: Any) -> bool:
    """Return whether it is the gradient of integers."""
    return gradient.dtype == jax.dtypes.float0


def _run(jaxpr: Any, values: list[Any]) -> list[Any]:
    return run_jaxpr(jaxpr, values, lambda eqn, values, bind: bind(*values))


def _entries(stacks: list[Any], number: Any) -> list[Any]:
    return [jax.lax.dynamic_index_in_dim(x, number, keepdims=False) for x in stacks]


@jax.custom_batching.custom_vmap
def _added(sums: jax.Array, row: jax.Array, number: jax.Array) -> jax.Array:
    return _added_at(sums, row[None], number, 0)


@_added.def_vmap
def _added_on_stages(
    size: int, is_batched: list[bool], sums: jax.Array, rows: jax.Array, number: jax.Array
) -> tuple[jax.Array, bool]:
    """Add the rows of all stages: where it is the same entry of each, one slice, which `jax.vmap` would make a scatter.

    With repeats each stage is at another. XLA makes a slice of a scatter again where a device has one stage. Zeros may
    be the same for all stages, such as those of what is not trained.
    """
    sums, rows = (
        x if one else jnp.broadcast_to(x, (size, *x.shape)) for x, one in zip((sums, rows), is_batched[:2], strict=True)
    )
    if is_batched[2]:
        return jax.vmap(lambda total, row, at: total.at[at].add(row, mode="promise_in_bounds"))(
            sums, rows, number
        ), True
    return _added_at(sums, rows[:, None], number, 1), True


def _added_at(sums: jax.Array, rows: jax.Array, number: jax.Array, dim: int) -> jax.Array:
    before = jax.lax.dynamic_slice_in_dim(sums, number, 1, dim)
    return jax.lax.dynamic_update_slice_in_dim(sums, before + rows, number, dim)
