"""How values are spread after operations that work entry by entry."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np

from outlay.analysis.hlo.execute.elementwise import ELEMENTWISE
from outlay.analysis.verify.static.device_numbers import count_after
from outlay.analysis.verify.static.one_device import on_one_device
from outlay.analysis.verify.static.spreads import (
    GONE,
    NOWHERE,
    SUMMED,
    Split,
    Spread,
    Tree,
    Value,
    mixed,
    split_along,
    summand_of,
)
from outlay.analysis.verify.static.visit import Rules, Visit

Form = Literal["sum", "product", "quotient", "linear", "choice", "maximum", "minimum", "or", "and", "other"]

_FORMS: dict[str, Form] = {
    **dict.fromkeys(("add", "subtract", "complex"), "sum"),
    "multiply": "product",
    "divide": "quotient",
    **dict.fromkeys(("convert", "imag", "negate", "real", "reduce-precision"), "linear"),
    "select": "choice",
    **{name: name for name in ("maximum", "minimum", "or", "and")},
}

# Of integers that differ these may make the same ones, as of the devices' numbers those along one axis.
_WRAPS = frozenset(("and", "divide", "or", "remainder", "shift-right-logical", "shift-right-arithmetic"))


def entrywise(visit: Visit, form: Form = "other") -> Tree:
    """Return how the result of an operation is spread that works entry by entry."""
    values = visit.arrays
    if form == "choice" and (chosen := on_one_device(visit)) is not None:
        return chosen
    rank = len(visit.shape.dims)
    every = frozenset(range(rank))
    # A number that stands for all entries, such as a bound or a condition.
    uniform = [every if not visit.dims_of(at) and rank else value.uniform for at, value in enumerate(values)]
    spreads = visit.by_axis(lambda axis, held: _spread(visit, axis, held, values, uniform, form), values)
    if visit.instruction.opcode in _WRAPS and visit.shape.dtype[0] in "su":
        spreads = tuple(_wrapped(one) for one in spreads)
    keeps_zero = form in ("linear", "sum") and all(one.is_zero for one in values)
    is_unscaled = form in ("linear", "sum") and all(one.is_unscaled for one in values)
    spreads = _counted(visit, values, spreads)
    shift = _shift(visit, values)
    return Value(spreads, frozenset.intersection(every, *uniform), keeps_zero, is_unscaled=is_unscaled, shift=shift)


def _wrapped(one: Spread) -> Spread:
    if one.kind == "varying" or any(split.dim == GONE for split in one.splits):
        return Spread("varying", is_loose=True, cause=one.cause)
    return one


def _counted(visit: Visit, values: list[Value], spreads: tuple[Spread, ...]) -> tuple[Spread, ...]:
    """Return the spreads of a sum of numbers that each device counts and of the number at which it starts."""
    numbers = [value.numbers for value in values if value.numbers is not None]
    if visit.instruction.opcode != "add" or len(values) != 2 or len(numbers) != 2:
        return spreads
    count, starts = numbers if len(numbers[0]) == 1 else numbers[::-1]
    if len(count) > 1 or starts.size != len(starts) or starts.size == 1:
        return spreads
    parts = count_after(count, starts.reshape(-1), visit.reading.axes)
    return tuple(split_along([parts[axis]], one.cause) if axis in parts else one for axis, one in enumerate(spreads))


def _shift(visit: Visit, values: list[Value]) -> np.ndarray | None:
    """Return what each device has subtracted from integers that are alike along the axes on which that depends."""
    name = visit.instruction.opcode
    if name == "convert" and visit.shape.dtype[0] in "su" and values:
        return values[0].shift
    if name not in ("add", "subtract") or visit.shape.dtype[0] not in "su" or len(values) != 2:
        return None
    whole, own = values if values[1].numbers is not None or name == "subtract" else values[::-1]
    if own.numbers is None or own.numbers.size != len(own.numbers) or len(own.numbers) == 1:
        return None
    differing = [axis for axis, one in enumerate(own.spreads) if one.kind != "replicated"]
    if any(whole.spreads[axis].kind != "replicated" for axis in differing):
        return None
    numbers = own.numbers.reshape(-1).astype(np.int64)
    return numbers if name == "subtract" else -numbers


def _spread(
    visit: Visit, axis: int, held: list[Spread], values: list[Value], uniform: list[frozenset[int]], form: Form
) -> Spread:
    if any(one.kind == "partial" for one in held):
        return _of_summands(visit, axis, held, values, form)
    if any(one.kind not in ("replicated", "split") for one in held):
        return mixed(held, visit.here)
    split = [one for one in held if one.kind == "split"]
    readings = frozenset.intersection(*(one.splits for one in split))
    if not readings:
        _check_dims(visit, axis, split)
    for one, dims in zip(held, uniform, strict=True):
        if one.kind == "replicated":
            readings = frozenset(reading for reading in readings if reading.dim in dims or reading.dim in NOWHERE)
    readings = _with_summands(readings, held, values, form)
    return split_along(readings, split[0].cause) if readings else mixed(held, visit.here)


def _with_summands(readings: frozenset[Split], held: list[Spread], values: list[Value], form: Form) -> frozenset[Split]:
    """Return the readings in which devices may have a summand each, if the result may be one, and the others."""
    num_split = sum(one.kind == "split" for one in held)
    if form == "product" and num_split > 1:
        # A product of what each device has one of may be a summand.
        certain = frozenset(one for one in readings if one.dim != SUMMED)
        return certain | {Split(SUMMED, 1, one.below) for one in certain if one.dim == GONE}
    rest = zip(held[1:], values[1:], strict=True) if form == "choice" else zip(held, values, strict=True)
    all_added = form in ("sum", "choice") and all(one.kind == "split" or value.is_zero for one, value in rest)
    all_added = all_added and (form == "sum" or held[0].kind == "replicated")
    is_scaled = form == "product" or (form == "quotient" and held[0].kind == "split" and num_split == 1)
    if form == "linear" or all_added or is_scaled:
        return readings
    return frozenset(one for one in readings if one.dim != SUMMED)


def _check_dims(visit: Visit, axis: int, split: list[Spread]) -> None:
    """Note arrays that meet entry by entry although they are split along different dims."""
    places = {(reading.dim, reading.below) for one in split for reading in one.splits}
    dims = {dim for dim, _ in places}
    is_certain = all(len(one.splits) == 1 for one in split)
    is_certain = is_certain and not dims & NOWHERE and all(visit.shape.dims[dim] > 1 for dim in dims)
    if len(places) < 2 or not is_certain or not visit.reading.by_compiler:
        return
    listed = " and ".join(map(str, sorted(dims)))
    words = f"along another dim ({listed})" if len(dims) > 1 else f"along dim {listed} in another order"
    words = f"meets entry by entry what is split over the same devices {words}"
    visit.note("part of another", axis, split[-1], words)


def _of_summands(visit: Visit, axis: int, held: list[Spread], values: list[Value], form: Form) -> Spread:
    """Return what becomes of summands: a sum of them is one, and so is what they are multiplied with alike."""
    summands = [one for one in held if one.kind == "partial"]
    combiners = {one.combiner for one in summands}
    first = summands[0]
    whole = [one.kind == "replicated" for one in held]
    if form == "linear":
        return first
    if combiners == {"add"}:
        rest = held[1:] if form == "choice" else held
        zeros = [value.is_zero for value in (values[1:] if form == "choice" else values)]
        if form in ("sum", "choice") and (form == "sum" or whole[0]):
            if all(one.kind == "partial" or zero for one, zero in zip(rest, zeros, strict=True)):
                return summand_of([one for one in rest if one.kind == "partial"])
            known = all(one.kind == "partial" or value.is_unscaled for one, value in zip(held, values, strict=True))
            if form == "sum" and known and all(one.kind in ("partial", "replicated") for one in rest):
                return _with_a_whole(visit, axis, held, first)
        if form == "product" and len(summands) == 1 and sum(whole) == len(held) - 1:
            return first
        if form == "quotient" and held[0].kind == "partial" and all(whole[1:]):
            return first
    elif combiners == {form} and all(one.kind == "partial" for one in held):
        return first
    return visit.used_whole(axis, held)


def _with_a_whole(visit: Visit, axis: int, held: list[Spread], first: Spread) -> Spread:
    if visit.reading.by_compiler:
        words = "is added, before it is summed over the devices, to a value that all of them have"
        visit.note("sum missing", axis, first, words)
    return mixed(held, visit.here)


ENTRYWISE: Rules = {name: partial(entrywise, form=_FORMS.get(name, "other")) for name in ELEMENTWISE}
