"""The calls of a place of a pipeline: its functions, with the sums that its stage adds up."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.jax_tracing import replay
from outlay.program.stages.scheduled_run import Values
from outlay.program.stages.staged_loss import StagedLoss


@dataclass(frozen=True)
class StageSums:
    """What a stage adds up.

    Attributes:
        layers: the gradients of its layers, for each repeat, stacked.
        common: the gradients of shared parameters, and the sums of the loss, each with a dim of size 1 in front.
    """

    layers: list[Values]
    common: Values


def zeros(loss: StagedLoss) -> StageSums:
    """Return the sums of a stage before the first microbatch."""
    layers, common = sum_shapes(loss)
    made = [jnp.zeros(x.shape, x.dtype) for x in layers]
    return StageSums(
        [list(made) for _ in range(loss.schedule.num_repeats)], [jnp.zeros(x.shape, x.dtype) for x in common]
    )


def sum_shapes(loss: StagedLoss) -> tuple[list[Any], list[Any]]:
    """Return the sums of a stage, for one repeat, as shapes; with as many layers as the largest place has."""
    inner, size = loss.cut.jaxpr.in_avals, loss.cut.most_layers
    layers = [
        jax.ShapeDtypeStruct((size, *var.aval.shape[1:]), _wide(var.aval.dtype)) for var in loss.cut.scanned_layers
    ]
    shared = [jax.ShapeDtypeStruct((1, *inner[n].shape), _wide(inner[n].dtype)) for n in loss.shared]
    totals = [jax.ShapeDtypeStruct((1, *x.shape), x.dtype) for x in jax.tree.leaves(loss.results[1])]
    return layers, [*shared, *totals]


def forward(loss: StagedLoss, place: int, values: Values, totals: Values) -> tuple[Values, Values, Values]:
    """Return what moves on, what is kept besides what was given, and the sums of the loss."""
    function = loss.functions[place]
    own = [_row(loss, x) for x in values[: function.num_layers]]
    results = replay(function.forward, [*own, *values[function.num_layers :]])
    moved, residuals = results[: len(function.moved)], results[len(function.moved) :]
    if not function.is_last:
        return moved, residuals, totals
    return [], residuals, [total + x[None] for total, x in zip(totals, moved[1:], strict=True)]


def backward(
    loss: StagedLoss, place: int, held: Values, back: Values, layers: Values, shared: Values
) -> tuple[Values, Values, Values]:
    """Return what moves back, and the sums with the gradients of a microbatch."""
    function = loss.functions[place]
    grads = replay(function.backward, [*_rows(loss, place, held), *back])
    num = function.num_back
    return grads[:num], *_added(loss, place, layers, shared, grads[num:])


def inputs(loss: StagedLoss, place: int, held: Values, back: Values) -> tuple[Values, Values]:
    """Return what moves back, and what the half for weights takes."""
    return loss.functions[place].halves.inputs(*_rows(loss, place, held), *back)


def weights(
    loss: StagedLoss, place: int, held: Values, back: Values, handed: Values, layers: Values, shared: Values
) -> tuple[Values, Values]:
    """Return the sums with the gradients of a microbatch."""
    values = [*_rows(loss, place, held), *back]
    return _added(loss, place, layers, shared, loss.functions[place].halves.weights(values, handed))


CALLS_OF: dict[str, Callable[..., Any]] = {
    "forward": forward,
    "backward": backward,
    "inputs": inputs,
    "weights": weights,
}
"""The calls by name."""


class CalledStages(abc.ABC):
    """Runs the calls of places; see the protocol `Stages`. Where they run, a subclass says.

    Args:
        loss: the loss.
    """

    def __init__(self, loss: StagedLoss) -> None:
        self._loss = loss

    @abc.abstractmethod
    def arguments(self, place: int, part: int) -> Values:
        """Return what a place takes for its forward pass, before what moves."""

    @abc.abstractmethod
    def call(self, name: str, place: int, *values: Any) -> Any:
        """Run one of a place's calls."""

    def forward(self, place: int, part: int, moving: Values, sums: StageSums) -> tuple[Values, Values, StageSums]:
        """Return what moves on, what is held for the backward pass, and the sums."""
        function = self._loss.functions[place]
        values = [*self.arguments(place, part), *moving]
        num = len(self._loss.shared)
        totals = sums.common[num:] if function.is_last else []
        moved, residuals, totals = self.call("forward", place, values, totals)
        if function.is_last:
            sums = replace(sums, common=[*sums.common[:num], *totals])
        return moved, [*(values[number] for number in function.held), *residuals], sums

    def backward(self, place: int, part: int, held: Values, back: Values, sums: StageSums) -> tuple[Values, StageSums]:
        """Return what moves back, and the sums."""
        given, layers, shared = self.call("backward", place, held, back, *self._own(place, sums))
        return given, self._with(place, sums, layers, shared)

    def inputs(self, place: int, part: int, held: Values, back: Values) -> tuple[Values, Values]:
        """Return what moves back, and what the half for weights takes."""
        return self.call("inputs", place, held, back)

    def weights(self, place: int, part: int, held: Values, back: Values, handed: Values, sums: StageSums) -> StageSums:
        """Return the sums."""
        layers, shared = self.call("weights", place, held, back, handed, *self._own(place, sums))
        return self._with(place, sums, layers, shared)

    def _numbers(self, place: int) -> list[int]:
        return [self._loss.shared.index(number) for number in self._loss.functions[place].taken.shared]

    def _own(self, place: int, sums: StageSums) -> tuple[Values, Values]:
        repeat = place // self._loss.schedule.num_stages
        return sums.layers[repeat], [sums.common[number] for number in self._numbers(place)]

    def _with(self, place: int, sums: StageSums, layers: Values, shared: Values) -> StageSums:
        repeat = place // self._loss.schedule.num_stages
        common = [*sums.common]
        for number, x in zip(self._numbers(place), shared, strict=True):
            common[number] = x
        return StageSums([layers if n == repeat else each for n, each in enumerate(sums.layers)], common)


def at_least_float32(x: jax.Array) -> jax.Array:
    """Convert a gradient to float32, or leave it as wide as it is."""
    return x.astype(_wide(x.dtype))


def _wide(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float32)


def _rows(loss: StagedLoss, place: int, held: Values) -> Values:
    """Return what is held as the backward pass takes it: arguments, and then residuals."""
    function = loss.functions[place]
    given = [_row(loss, x) if n < function.num_layers else x for n, x in zip(function.held, held, strict=False)]
    return [*given, *held[len(given) :]]


def _row(loss: StagedLoss, x: jax.Array) -> jax.Array:
    """Return layers as the function of a place takes them."""
    return x[0] if loss.cut.unrolled else x


def _added(loss: StagedLoss, place: int, layers: Values, shared: Values, grads: Sequence[Any]) -> tuple[Values, Values]:
    own, num = iter(grads), loss.cut.num_pieces(place)
    add = _added_row_by_row if loss.cut.unrolled else _added_to_first
    of_layers = [add(total, *itertools.islice(own, num)) for total in layers]
    return of_layers, [total + x[None].astype(total.dtype) for total, x in zip(shared, own, strict=True)]


def _added_to_first(total: jax.Array, x: jax.Array) -> jax.Array:
    x = x.astype(total.dtype)
    return total + x if x.shape == total.shape else total.at[: x.shape[0]].add(x)


def _added_row_by_row(total: jax.Array, *rows: jax.Array) -> jax.Array:
    """Add to a stack in place: XLA does not see that a scatter to a known row is a slice of the stack."""
    for number, x in enumerate(rows):
        row = jax.lax.slice_in_dim(total, number, number + 1) + x[None].astype(total.dtype)
        total = jax.lax.dynamic_update_slice_in_dim(total, row, number, 0)
    return total
