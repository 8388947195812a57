"""How values are spread after operations that make, reshape, cut and join arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from outlay.analysis.hlo.execute.literal import dtype_of
from outlay.analysis.hlo.hlo_module import dtype_bits
from outlay.analysis.verify.static import split_dims
from outlay.analysis.verify.static.device_numbers import constant, is_followed, numbers_in, value_of
from outlay.analysis.verify.static.split_dims import order_of
from outlay.analysis.verify.static.spreads import (
    GONE,
    REPLICATED,
    UNKNOWN,
    Part,
    Split,
    Spread,
    Tree,
    Value,
    mixed,
    split_along,
)
from outlay.analysis.verify.static.visit import Rules, Visit

_SLICE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")


def _constant(visit: Visit) -> Tree:
    numbers = constant(visit.instruction)
    if numbers is not None:
        return value_of(numbers, visit.reading.axes, visit.here)
    text = visit.instruction.value.strip()
    is_zero = not visit.shape.dims and text in ("0", "-0", "(0, 0)", "false")
    return replace(visit.replicated, is_zero=is_zero)


def _iota(visit: Visit) -> Tree:
    counted, dims = visit.number("iota_dimension", 0), visit.shape.dims
    if is_followed(visit.shape.dtype, dims[counted]):
        numbers = np.arange(dims[counted], dtype=dtype_of(visit.shape.dtype)).reshape(
            [-1 if dim == counted else 1 for dim in range(-1, len(dims))]
        )
        return value_of(numbers, visit.reading.axes, visit.here)
    return replace(visit.replicated, uniform=frozenset(range(len(visit.shape.dims))) - {counted})


def _moved_dims(visit: Visit, value: Value, splits: dict[int, frozenset[Split]], uniform: frozenset[int]) -> Value:
    """Return a value whose dims stand elsewhere: its splits by axis are given."""
    spreads = tuple(
        split_along(splits[axis], one.cause) if one.kind == "split" else one for axis, one in enumerate(value.spreads)
    )
    return Value(spreads, uniform, value.is_zero, is_unscaled=value.is_unscaled, shift=value.shift)


def _broadcast(visit: Visit) -> Tree:
    value, rank = visit.array(0), len(visit.shape.dims)
    places = dict(enumerate(visit.numbers("dimensions")))
    new = [dim for dim in range(rank) if dim not in places.values()]
    splits = {
        axis: split_dims.rank_map(one.splits, places)
        # One entry on each device may get its dim back.
        | {Split(dim, 1, s.below) for s in one.splits if s.dim == GONE for dim in new if visit.shape.dims[dim] == 1}
        for axis, one in enumerate(value.spreads)
    }
    uniform = frozenset(new)
    return _moved_dims(visit, value, splits, uniform | {places[dim] for dim in value.uniform if dim in places})


def _reshape(visit: Visit) -> Tree:
    return _reshaped(visit, visit.array(0), visit.dims_of(0), visit.shape.dims)


def _reshaped(visit: Visit, value: Value, before: Sequence[int], after: Sequence[int]) -> Value:
    splits = {axis: split_dims.reshaped(one.splits, before, after) for axis, one in enumerate(value.spreads)}
    result = _moved_dims(visit, value, splits, split_dims.uniform_after(value.uniform, before, after))
    parts = []
    for part in value.parts:
        if place := split_dims.part_after(part.dim, part.start, part.end, before, after):
            dim, start, end = place
            inner = [[*before], [*after]]
            inner[0][part.dim], inner[1][dim] = part.end - part.start, end - start
            parts.append(Part(dim, start, end, _reshaped(visit, part.value, *inner)))
    return replace(result, numbers=numbers_in(value.numbers, before, after), parts=tuple(parts))


def _transpose(visit: Visit) -> Tree:
    value, order = visit.array(0), visit.numbers("dimensions")
    return _transposed(visit, value, order)


def _transposed(visit: Visit, value: Value, order: tuple[int, ...]) -> Value:
    splits = {axis: split_dims.permuted(one.splits, order) for axis, one in enumerate(value.spreads)}
    uniform = frozenset(new for new, old in enumerate(order) if old in value.uniform)
    parts = tuple(
        part._replace(dim=order.index(part.dim), value=_transposed(visit, part.value, order)) for part in value.parts
    )
    numbers = None if value.numbers is None else value.numbers.transpose(0, *(dim + 1 for dim in order))
    return replace(_moved_dims(visit, value, splits, uniform), numbers=numbers, parts=parts)


def _bitcast(visit: Visit) -> Tree:
    """Reread the bytes: put the dims in the order of memory, reshape, and name them in the order of the result."""
    value, before, after = visit.array(0), visit.shape_of(0), visit.shape
    same_width = dtype_bits(before.dtype) == dtype_bits(after.dtype)
    if same_width and len(before.dims) == len(after.dims) and order_of(before) == order_of(after):
        # A TPU's tiles are filled up: a bitcast may leave out what fills them.
        cut = {dim for dim, sizes in enumerate(zip(before.dims, after.dims, strict=True)) if sizes[0] != sizes[1]}
        if cut and math.prod(before.dims) != math.prod(after.dims):
            return kept_dims(sliced(value), cut, value.is_zero)
    if not same_width or math.prod(before.dims) != math.prod(after.dims):
        return _rearranged(visit)
    old_order, new_order = split_dims.order_of(before), split_dims.order_of(after)
    in_memory = _transposed(visit, value, old_order)
    old_dims = [before.dims[dim] for dim in old_order]
    new_dims = [after.dims[dim] for dim in new_order]
    named = tuple(sorted(range(len(new_order)), key=new_order.__getitem__))
    if before.dims != after.dims and any(size == 1 for size in old_dims):
        # Which dim of size one is which does not show in memory: they go, and come again.
        squeezed = [size for size in old_dims if size > 1]
        in_memory, old_dims = _reshaped(visit, in_memory, old_dims, squeezed), squeezed
    return _transposed(visit, _reshaped(visit, in_memory, old_dims, new_dims), named)


def _rearranged(visit: Visit) -> Tree:
    """Return an array whose entries are the operands' in an unknown order."""
    values = visit.arrays
    spreads = visit.by_axis(lambda axis, held: mixed(held, visit.here), values)
    return Value(spreads, is_zero=bool(values) and all(one.is_zero for one in values))


def kept_dims(value: Value, changed: set[int], is_zero: bool) -> Value:
    """Return a value after an operation that changes the entries along some dims: splits along others stay."""
    spreads = []
    for one in value.spreads:
        if one.kind == "split":
            one = split_along((split for split in one.splits if split.dim not in changed), one.cause)
        spreads.append(one)
    return Value(tuple(spreads), value.uniform - changed, is_zero, is_unscaled=value.is_unscaled, shift=value.shift)


def sliced(value: Value) -> Value:
    """Return what is known of a part of an array: of what may be the same in part, nothing."""
    spreads = tuple(UNKNOWN if one.is_loose else one for one in value.spreads)
    return Value(spreads, value.uniform, value.is_zero, shift=value.shift)


def _slice(visit: Visit) -> Tree:
    value, before = visit.array(0), visit.dims_of(0)
    cuts = [(int(low), int(high)) for low, high, _ in _SLICE.findall(visit.instruction.attributes.get("slice", ""))]
    changed = {dim for dim, (cut, size) in enumerate(zip(cuts, before, strict=False)) if cut != (0, size)}
    for part in value.parts:
        low, high = cuts[part.dim]
        if changed == {part.dim} and (part.start, part.end) == (low, high):
            return part.value
        if changed == {part.dim} and part.start <= low and high <= part.end:
            value, changed = part.value, {part.dim}
    result = kept_dims(sliced(value) if changed else value, changed, value.is_zero)
    cut = Part(min(changed), *cuts[min(changed)], visit.array(0)) if len(changed) == 1 else None
    return replace(result, uniform=value.uniform, cut=cut)


def _pad(visit: Visit) -> Tree:
    value, padding = visit.arrays[:2]
    dims = visit.instruction.attributes.get("padding", "").split("x")
    changed = {dim for dim, text in enumerate(dims) if any(number != "0" for number in text.split("_"))}
    result = kept_dims(value, changed, value.is_zero and padding.is_zero)
    spreads = []
    for axis, one in enumerate(result.spreads):
        both = (one, padding.spreads[axis])
        is_harmless = both[1].kind == "replicated" and (one.kind != "partial" or padding.is_zero)
        spreads.append(one if is_harmless else visit.used_whole(axis, both))
    return replace(result, spreads=tuple(spreads))


def _reverse(visit: Visit) -> Tree:
    return kept_dims(visit.array(0), set(visit.numbers("dimensions")), visit.array(0).is_zero)


def _concatenate(visit: Visit) -> Tree:
    """Join arrays: each is spread as the others are, and not split along the dim that they are joined along."""
    values = visit.arrays
    grown = [dim for dim, size in enumerate(visit.shape.dims) if size != visit.dims_of(0)[dim]]
    dim = visit.number("dimensions", (*grown, 0)[0])
    if (whole := _put_together(values, dim, visit.shape.dims)) is not None:
        return whole
    spreads = visit.by_axis(lambda axis, held: _joined_along(visit, held, values, dim), values)
    parts, start = [], 0
    for number, value in enumerate(values):
        size = visit.dims_of(number)[dim]
        parts.append(Part(dim, start, start + size, value))
        start += size
    uniform = frozenset.intersection(*(value.uniform for value in values)) - {dim}
    return Value(spreads, uniform, all(value.is_zero for value in values), parts=tuple(parts))


def _put_together(values: list[Value], dim: int, dims: tuple[int, ...]) -> Value | None:
    """Return an array whose slices along a dim are concatenated again, as for a TPU's copies in pieces."""
    end, whole = 0, values[0].cut.value if values[0].cut else None
    for one in values:
        if one.cut is None or one.cut.value is not whole or one.cut[:2] != (dim, end):
            return None
        end = one.cut.end
    return whole if end == dims[dim] else None


def _joined_along(visit: Visit, held: list[Spread], values: list[Value], dim: int) -> Spread:
    if all(one == held[0] for one in held) and held[0].kind != "split":
        return held[0]
    if any(one.kind == "unknown" for one in held):
        return UNKNOWN
    summands = [one for one in held if one.kind == "partial"]
    pairs = list(zip(held, values, strict=True))
    if summands and all(one == summands[0] or (value.is_zero and one == REPLICATED) for one, value in pairs):
        return summands[0]
    if not summands and all(one.kind in ("split", "replicated") for one in held):
        readings = frozenset.intersection(*(one.splits for one in held if one.kind == "split"))
        for one, value in pairs:
            if one.kind == "replicated":
                readings = frozenset(split for split in readings if split.dim in value.uniform or split.dim == GONE)
        if readings := frozenset(split for split in readings if split.dim != dim):
            return Spread("split", readings, cause=next(one.cause for one in held if one.kind == "split"))
    differing = next(one for one in held if one.kind != "replicated")
    # If each of them differs between devices, so does every piece of the whole.
    is_loose = any(one.is_loose or one.kind not in ("split", "varying") for one in held)
    return Spread("varying", is_loose=is_loose, cause=differing.cause or visit.here)


def _first(visit: Visit) -> Tree:
    return visit.operands[0] if visit.operands else ()


def _barrier(visit: Visit) -> Tree:
    return visit.operands[0] if len(visit.operands) == 1 else visit.operands


def _tuple(visit: Visit) -> Tree:
    return visit.operands


def _element(visit: Visit) -> Tree:
    whole, index = visit.operands[0], visit.number("index", 0)
    return whole[index] if isinstance(whole, tuple) and index < len(whole) else visit.unknown


SHAPE: Rules = {
    "add-dependency": _first,
    "after-all": lambda visit: (),
    "bitcast": _bitcast,
    "bitcast-convert": lambda visit: _bitcast(visit),
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "constant": _constant,
    "copy": _first,
    "domain": _first,
    "get-tuple-element": _element,
    "iota": _iota,
    "opt-barrier": _barrier,
    "optimization-barrier": _barrier,
    "pad": _pad,
    "reshape": _reshape,
    "reverse": _reverse,
    "slice": _slice,
    "transpose": _transpose,
    "tuple": _tuple,
}
