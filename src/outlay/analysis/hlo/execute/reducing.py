"""What reductions, windows and sorts compute, with any function of the program as the one that combines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from outlay.analysis.hlo.execute.indexing import combine_kind
from outlay.analysis.hlo.execute.operation import Meanings, Operation

_FIELD = re.compile(r"(\w+)=([-\dx_]+)")


def _as_result(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _combining(operation: Operation) -> Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]:
    """Return the computation as a function of two tuples, that returns one."""
    function = operation.applied("to_apply")

    def combine(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
        result = function(*left, *right)
        return result if isinstance(result, tuple) else (result,)

    return combine


def _halves(operation: Operation) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the arrays and the numbers that their reductions begin with."""
    half = len(operation.operands) // 2
    return operation.operands[:half], operation.operands[half:]


def _reduce(operation: Operation) -> Any:
    arrays, starts = _halves(operation)
    return _as_result(lax.reduce(arrays, starts, _combining(operation), operation.numbers("dimensions")))


def read_window(text: str) -> dict[str, list[Any]]:
    """Parse a window: `size`, `stride`, `lhs_dilate`, `rhs_dilate` and `rhs_reversal` by dim, `pad` as pairs.

    Examples:
        >>> read_window("{size=1x3 pad=0_0x1_2 stride=1x2}")["pad"]
        [(0, 0), (1, 2)]
    """
    fields = {name: value.split("x") for name, value in _FIELD.findall(text)}
    num_dims = len(fields.get("size", ()))
    window: dict[str, list[Any]] = {
        name: [int(value) for value in fields.get(name, [absent] * num_dims)]
        for name, absent in (("size", "1"), ("stride", "1"), ("lhs_dilate", "1"), ("rhs_dilate", "1"))
    }
    window["rhs_reversal"] = [int(value) for value in fields.get("rhs_reversal", ["0"] * num_dims)]
    pads = [tuple(map(int, pair.split("_"))) for pair in fields.get("pad", ["0_0"] * num_dims)]
    window["pad"] = [(pair[0], pair[-1]) for pair in pads]
    return window


def _reduce_window(operation: Operation) -> Any:
    arrays, starts = _halves(operation)
    return _as_result(_windows(arrays, starts, _combining(operation), operation))


def _windows(arrays: Any, starts: Any, combine: Any, operation: Operation) -> Any:
    window = read_window(operation.instruction.attributes["window"])
    return lax.reduce_window(
        tuple(arrays),
        tuple(starts),
        combine,
        tuple(window["size"]),
        tuple(window["stride"]),
        tuple(window["pad"]),
        base_dilation=tuple(window["lhs_dilate"]),
        window_dilation=tuple(window["rhs_dilate"]),
    )


def _select_and_scatter(operation: Operation) -> Any:
    """Add each number of a source to the entry that its window selects, as gradients of max pooling do."""
    array, source, start = operation.operands
    selects = operation.applied("select")
    scatter = operation.module.called(operation.instruction, "scatter")
    if scatter is None or combine_kind(scatter) != "add":
        raise ValueError("a select-and-scatter that does not add has no meaning here")
    numbers = lax.broadcasted_iota(jnp.int32, (array.size,), 0).reshape(array.shape)

    def select(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
        # What a reduction starts with, and padding, have no number.
        keeps = (right[1] < 0) | ((left[1] >= 0) & selects(left[0], right[0]))
        return jnp.where(keeps, left[0], right[0]), jnp.where(keeps, left[1], right[1])

    none = jnp.zeros((), array.dtype), jnp.full((), -1, jnp.int32)
    _, chosen = _windows((array, numbers), none, select, operation)
    total = jnp.full(array.size, start).at[chosen.reshape(-1)].add(source.reshape(-1))
    return total.reshape(array.shape)


def _sort(operation: Operation) -> Any:
    """Sort by a network of exchanges, which needs nothing but the program's own comparison (Batcher 1968)."""
    before = operation.applied("to_apply")
    dim = operation.number("dimensions", 0)
    length = operation.operands[0].shape[dim]
    padded = 1 << max(length - 1, 0).bit_length()
    columns = [jnp.moveaxis(value, dim, -1) for value in operation.operands]
    pad = [(0, 0)] * (columns[0].ndim - 1) + [(0, padded - length)]
    # What is equal stays in order, and what is padded comes last: both by the entry's number.
    position = lax.broadcasted_iota(jnp.int64, (*columns[0].shape[:-1], padded), columns[0].ndim - 1)
    values = [*(jnp.pad(value, pad) for value in columns), position]

    def comes_first(left: Sequence[Any], right: Sequence[Any]) -> Any:
        pairs = [one.reshape(-1) for both in zip(left[:-1], right[:-1], strict=True) for one in both]
        is_before = jax.vmap(before)(*pairs).reshape(left[-1].shape)
        is_after = jax.vmap(before)(*(pairs[i ^ 1] for i in range(len(pairs)))).reshape(left[-1].shape)
        in_order = is_before | (~is_after & (left[-1] < right[-1]))
        return jnp.where((left[-1] < length) & (right[-1] < length), in_order, left[-1] < right[-1])

    stages = [(2**power, 2**step) for power in range(1, padded.bit_length()) for step in reversed(range(power))]
    if stages:
        sizes, distances = (jnp.array(column) for column in zip(*stages, strict=True))

        def exchange(stage: Any, values: list[Any]) -> list[Any]:
            return _exchanged(values, sizes[stage], distances[stage], comes_first)

        values = lax.fori_loop(0, len(stages), exchange, values)
    return _as_result([jnp.moveaxis(value[..., :length], -1, dim) for value in values[:-1]])


def _exchanged(values: Sequence[Any], size: Any, distance: Any, comes_first: Any) -> list[Any]:
    """Put each two entries at a distance in order, up in every other run of `size` entries and down in the others."""
    numbers = lax.broadcasted_iota(jnp.int64, values[0].shape, values[0].ndim - 1)
    partner = numbers ^ distance
    is_lower = (numbers & distance) == 0
    goes_up = (numbers & size) == 0
    others = [jnp.take_along_axis(value, partner, -1) for value in values]
    stays = comes_first(values, others) == (is_lower == goes_up)
    return [jnp.where(stays, value, other) for value, other in zip(values, others, strict=True)]


def _top_k(operation: Operation) -> Any:
    num_kept = operation.number("k", operation.shape.dims[-1])
    values, indices = lax.top_k(operation.operands[0], num_kept)
    return values, indices.astype(jnp.int32)


REDUCING: Meanings = {
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "sort": _sort,
    "topk": _top_k,
}

REDUCING_CALLS: Meanings = {"TopK": _top_k, "__gpu$TopK": _top_k}
