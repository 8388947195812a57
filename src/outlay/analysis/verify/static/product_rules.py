"""How values are spread after matrix products, also in calls of libraries.

A product over a dim that both operands have a part of leaves each device with a summand of the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outlay.analysis.verify.static.spreads import (
    GONE,
    NOWHERE,
    REPLICATED,
    SUMMED,
    Split,
    Spread,
    Tree,
    Value,
    mixed,
    split_along,
)
from outlay.analysis.verify.static.visit import Rules, Visit

Places = Mapping[int, int]
"""From dims of an operand to dims of the result."""


def product(
    visit: Visit,
    left: Value,
    right: Value,
    contracted: Sequence[tuple[int, int]],
    left_places: Places,
    right_places: Places,
) -> Value:
    """Return how a product is spread.

    Args:
        visit: the instruction.
        left: the one operand.
        right: the other.
        contracted: dims of both that are summed over.
        left_places: where the other dims of the one are in the result; those of batches are in both.
        right_places: likewise of the other.
    """
    batched = {
        (one, other): place
        for one, place in left_places.items()
        for other, another in right_places.items()
        if place == another
    }

    def rule(axis: int, held: list[Spread]) -> Spread:
        return _spread(visit, axis, held, (left, right), contracted, (left_places, right_places), batched)

    spreads = visit.by_axis(rule, (left, right))
    if terms := [
        product(visit, one, other, contracted, left_places, right_places)
        for one, other in _joined_alike(left, right, contracted)
    ]:
        spreads = tuple(
            held[0] if all(one == held[0] for one in held) else spreads[axis]
            for axis, held in enumerate(zip(*(term.spreads for term in terms), strict=True))
        )
    uniform = {left_places[dim] for dim in left.uniform if dim in left_places}
    uniform ^= {right_places[dim] for dim in right.uniform if dim in right_places}
    both = set(batched.values())
    # Products with the same operand may have been joined to one.
    parts = [
        part._replace(
            dim=left_places[part.dim],
            value=product(visit, part.value, right, contracted, left_places, right_places),
        )
        for part in left.parts
        if part.dim in left_places and left_places[part.dim] not in both
    ] or [
        part._replace(
            dim=right_places[part.dim],
            value=product(visit, left, part.value, contracted, left_places, right_places),
        )
        for part in right.parts
        if part.dim in right_places and right_places[part.dim] not in both
    ]
    uniform = frozenset(dim for dim in uniform if dim not in both)
    return Value(spreads, uniform, is_unscaled=not (left.is_zero or right.is_zero), parts=tuple(parts))


def _joined_alike(left: Value, right: Value, contracted: Sequence[tuple[int, int]]) -> list[tuple[Value, Value]]:
    """Return the pairs whose products add up to a product of arrays that were joined along a contracted dim."""
    for dim, other in contracted:
        ones = [part for part in left.parts if part.dim == dim]
        others = [part for part in right.parts if part.dim == other]
        if ones and [part[1:3] for part in ones] == [part[1:3] for part in others]:
            return [(one.value, another.value) for one, another in zip(ones, others, strict=True)]
    return []


def _spread(
    visit: Visit,
    axis: int,
    held: list[Spread],
    values: tuple[Value, Value],
    contracted: Sequence[tuple[int, int]],
    places: tuple[Places, Places],
    batched: Mapping[tuple[int, int], int],
) -> Spread:
    kinds = [one.kind for one in held]
    if kinds in (["partial", "replicated"], ["replicated", "partial"]):
        one = held[kinds.index("partial")]
        return one if one.combiner == "add" else mixed(held, visit.here)
    if "partial" in kinds:
        return visit.used_whole(axis, held)
    if any(kind not in ("replicated", "split") for kind in kinds):
        return mixed(held, visit.here)
    if kinds == ["split", "split"]:
        results = set(_of_two_splits(held[0].splits, held[1].splits, contracted, batched))
    else:
        side = kinds.index("split")
        shared = {pair[side]: pair[1 - side] for pair in batched}
        pairs = {pair[side]: pair[1 - side] for pair in contracted}
        results = set(_of_one_split(held[side].splits, places[side], pairs, shared, values[1 - side].uniform))
    if results == {None}:
        return Spread("partial", combiner="add", cause=visit.here)
    if results:
        certain = [Split(SUMMED, 1, 1) if one is None else one for one in results]
        return split_along(certain, held[0].cause or held[1].cause)
    return mixed([Spread("varying", cause=visit.here)], visit.here)


def _of_two_splits(
    left: Iterable[Split],
    right: Iterable[Split],
    contracted: Sequence[tuple[int, int]],
    batched: Mapping[tuple[int, int], int],
) -> Iterable[Split | None]:
    """Yield the readings of the result; None for one in which it is a summand."""
    for one in left:
        for other in right:
            if one[1:] != other[1:]:
                continue
            if one.dim == other.dim == GONE:  # the one entry of each may be a batch's, or be summed over
                yield from (None, one)
            if (one.dim, other.dim) in contracted:
                yield None
            elif (one.dim, other.dim) in batched:
                yield Split(batched[one.dim, other.dim], one.inner, one.below)


def _of_one_split(
    splits: Iterable[Split],
    places: Places,
    contracted: Mapping[int, int],
    batched: Mapping[int, int],
    uniform: frozenset[int],
) -> Iterable[Split | None]:
    for one in splits:
        if one.dim in NOWHERE:
            yield one
        elif one.dim in contracted:
            if contracted[one.dim] in uniform:
                yield None
        elif one.dim in places and (one.dim not in batched or batched[one.dim] in uniform):
            yield Split(places[one.dim], one.inner, one.below)


def _dot(visit: Visit) -> Tree:
    names = ("lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims")
    return _of_dims(visit, *(visit.numbers(name) for name in names))


def _of_dims(
    visit: Visit,
    left_contracted: tuple[int, ...],
    right_contracted: tuple[int, ...],
    left_batched: tuple[int, ...],
    right_batched: tuple[int, ...],
) -> Value:
    """Return the product of the first two operands: first the dims of batches, then the left one's, then the right."""
    left_free = [dim for dim in range(len(visit.dims_of(0))) if dim not in (*left_contracted, *left_batched)]
    right_free = [dim for dim in range(len(visit.dims_of(1))) if dim not in (*right_contracted, *right_batched)]
    left_places = {dim: at for at, dim in enumerate((*left_batched, *left_free))}
    right_places = {dim: at for at, dim in enumerate(right_batched)}
    right_places |= {dim: len(left_places) + at for at, dim in enumerate(right_free)}
    contracted = list(zip(left_contracted, right_contracted, strict=False))
    return product(visit, visit.array(0), visit.array(1), contracted, left_places, right_places)


def configuration(visit: Visit, name: str) -> Mapping[str, Any]:
    """Return a part of what the compiler wrote beside a call for the library; empty without it."""
    try:
        config = json.loads(visit.instruction.attributes.get("backend_config", "{}"))
    except ValueError:
        return {}
    return config.get(name, {}) if isinstance(config, dict) else {}


def _cublas(visit: Visit) -> Tree:
    config = configuration(visit, "gemm_backend_config")
    dims = config.get("dot_dimension_numbers")
    if not isinstance(dims, dict):
        return with_workspace(visit, visit.unknown)
    names = (
        *("lhs_contracting_dimensions", "rhs_contracting_dimensions"),
        *("lhs_batch_dimensions", "rhs_batch_dimensions"),
    )
    result: Tree = _of_dims(visit, *(tuple(map(int, dims.get(name, ()))) for name in names))
    if float(config.get("alpha_real", 1)) != 1 and isinstance(result, Value):
        result = replace(result, is_unscaled=False, parts=())
    others = list(range(2, len(visit.operands)))
    if float(config.get("beta", 0)) and others:
        result = after(visit, result, [others.pop(0)], is_linear=True)
    epilogue = str(config.get("epilogue", "DEFAULT"))
    if epilogue != "DEFAULT" or others:
        result = after(visit, result, others, is_linear=False)
    return with_workspace(visit, result)


def after(visit: Visit, result: Tree, numbers: Sequence[int], *, is_linear: bool) -> Tree:
    """Return what becomes of a product to which the same call adds operands, or does more to its entries."""
    others = [visit.array(number) for number in numbers]
    if not isinstance(result, Value):
        return result
    if is_linear:
        spreads = tuple(
            _added(visit, axis, one, others[0].spreads[axis], others[0].is_zero)
            for axis, one in enumerate(result.spreads)
        )
        return Value(spreads)
    spreads = []
    for axis, one in enumerate(result.spreads):
        # A bias has a number for each entry of the last dim only.
        rest = [other.spreads[axis] for other in others]
        keeps = one.kind in ("replicated", "split", "varying") and all(other.kind == "replicated" for other in rest)
        if one.kind == "split" and any(other.kind == "split" for other in rest):
            one, keeps = _with_splits(visit, one, rest, numbers)
        spreads.append(one if keeps else visit.used_whole(axis, [one, *rest]))
    return Value(tuple(spreads))


def _with_splits(visit: Visit, one: Spread, rest: list[Spread], numbers: Sequence[int]) -> tuple[Spread, bool]:
    """Return a split product after others are added, of its own dims or of the last one, and whether they fit."""
    last, readings = len(visit.shape.dims) - 1, one.splits
    for other, number in zip(rest, numbers, strict=True):
        if len(visit.dims_of(number)) == last + 1:
            readings &= other.splits
        else:
            readings = frozenset(s for s in readings if (s.dim == last) == (other.kind == "split"))
    return (split_along(readings, one.cause), True) if readings else (one, False)


def _added(visit: Visit, axis: int, one: Spread, other: Spread, is_zero: bool) -> Spread:
    if one == other or (is_zero and other == REPLICATED):
        return one
    if one.kind == other.kind == "split":
        readings = one.splits & other.splits
        return split_along(readings, one.cause) if readings else mixed((one, other), visit.here)
    return visit.used_whole(axis, (one, other))


def with_workspace(visit: Visit, result: Tree) -> Tree:
    """Return the results, the memory that the library works in among them."""
    more = len(visit.instruction.shapes) - 1
    return (result, *(visit.replicated for _ in range(more))) if more else result


PRODUCT: Rules = {"dot": _dot}

LIBRARY_PRODUCT: Rules = {
    "__cublas$gemm": _cublas,
    "__cublas$lt$matmul": _cublas,
    "__cublas$lt$matmul$f8": _cublas,
}
