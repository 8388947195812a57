"""How values are spread after operations that work entry by entry."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from outlay.analysis.hlo.execute.elementwise import ELEMENTWISE
from outlay.analysis.verify.static.spreads import GONE, Spread, Tree, Value, mixed, split_along
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
    rank = len(visit.shape.dims)
    every = frozenset(range(rank))
    # A number that stands for all entries, such as a bound or a condition.
    uniform = [every if not visit.dims_of(at) and rank else value.uniform for at, value in enumerate(values)]
    spreads = visit.by_axis(lambda axis, held: _spread(visit, axis, held, values, uniform, form), values)
    if visit.instruction.opcode in _WRAPS and visit.shape.dtype[0] in "su":
        spreads = tuple(replace(one, is_loose=True) if one.kind == "varying" else one for one in spreads)
    keeps_zero = form in ("linear", "sum") and all(one.is_zero for one in values)
    is_unscaled = form in ("linear", "sum") and all(one.is_unscaled for one in values)
    return Value(spreads, frozenset.intersection(every, *uniform), keeps_zero, is_unscaled=is_unscaled)


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
            readings = frozenset(reading for reading in readings if reading.dim in dims or reading.dim == GONE)
    if form == "product" and len(split) > 1 and any(reading.dim == GONE for reading in readings):
        # A product of what each device has one of may be a summand.
        return mixed(held, visit.here)
    return split_along(readings, split[0].cause) if readings else mixed(held, visit.here)


def _check_dims(visit: Visit, axis: int, split: list[Spread]) -> None:
    """Note arrays that meet entry by entry although they are split along different dims."""
    dims = {reading.dim for one in split for reading in one.splits}
    is_certain = all(len(one.splits) == 1 for one in split)
    is_certain = is_certain and GONE not in dims and all(visit.shape.dims[dim] > 1 for dim in dims)
    if len(dims) > 1 and is_certain and visit.reading.by_compiler:
        listed = " and ".join(map(str, sorted(dims)))
        words = f"meets entry by entry what is split over the same devices along another dim ({listed})"
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
                return first
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
