"""How values are spread after reductions, windows and sorts."""

from __future__ import annotations

from outlay.analysis.hlo.execute.indexing import combine_kind
from outlay.analysis.hlo.execute.reducing import read_window
from outlay.analysis.hlo.hlo_module import Computation
from outlay.analysis.verify.static.shape_rules import kept_dims
from outlay.analysis.verify.static.split_dims import rank_map
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


def combiner_of(computation: Computation | None) -> str:
    """Return how a computation joins two numbers: `add`, `maximum`, `and`, ...; empty for any other way."""
    if computation is None or computation.root is None:
        return ""
    root = computation.root
    if root.opcode in ("or", "and") and len(root.operands) == 2:
        return root.opcode
    return combine_kind(computation) or ""


def _reduce(visit: Visit) -> Tree:
    half = len(visit.operands) // 2
    reduced = set(visit.numbers("dimensions"))
    combiner = combiner_of(visit.reading.module.called(visit.instruction, "to_apply")) if half == 1 else ""
    results = [_reduced(visit, visit.array(at), visit.dims_of(at), reduced, combiner) for at in range(half)]
    if half > 1:  # such as a largest entry with its place: each result follows from all
        spreads = visit.by_axis(lambda axis, held: _together(visit, axis, held, results), results)
        results = [Value(spreads, one.uniform) for one in results]
    return results[0] if half == 1 else tuple(results)


def _together(visit: Visit, axis: int, held: list[Spread], values: list[Value]) -> Spread:
    """Return how the result is spread if each entry depends on the same entry of every array."""
    if any(one.kind == "partial" for one in held):
        return visit.used_whole(axis, held)
    split = [one for one in held if one.kind == "split"]
    whole = [value for one, value in zip(held, values, strict=True) if one == REPLICATED]
    if len(split) + len(whole) < len(held):
        return mixed(held, visit.here)
    readings = frozenset.intersection(*(one.splits for one in split))
    readings = frozenset(one for one in readings if one.dim == GONE or all(one.dim in v.uniform for v in whole))
    return split_along(readings, split[0].cause)


def _reduced(visit: Visit, value: Value, dims: tuple[int, ...], reduced: set[int], combiner: str) -> Value:
    remaining = [dim for dim in range(len(dims)) if dim not in reduced]
    places = {dim: at for at, dim in enumerate(remaining)}
    spreads = []
    for axis, one in enumerate(value.spreads):
        if one.kind == "partial" and one.combiner != combiner:
            one = visit.used_whole(axis, [one])
        elif one.kind == "split":
            one = _of_split(visit, one, places, dims, combiner)
        spreads.append(one)
    uniform = frozenset(places[dim] for dim in value.uniform if dim in places)
    # Of copies, the sum of as many as a device has may be a summand.
    is_unscaled = not any(dim in value.uniform for dim in reduced) and all(dims[dim] > 1 for dim in reduced)
    return Value(tuple(spreads), uniform, value.is_zero and combiner == "add", is_unscaled=is_unscaled)


def _of_split(visit: Visit, one: Spread, places: dict[int, int], dims: tuple[int, ...], combiner: str) -> Spread:
    stay = rank_map(one.splits, places)
    if len(stay) == len(one.splits):
        return split_along(stay, one.cause)
    # A dim of size one may be split or not: then it is not known what the reduction is to mean.
    is_certain = not stay and any(dims[split.dim] > 1 for split in one.splits if split.dim not in NOWHERE)
    if is_certain and combiner:
        return Spread("partial", combiner=combiner, cause=visit.here)
    if combiner == "add":
        return split_along([*stay, Split(SUMMED, 1, 1)], one.cause)
    return Spread("varying", cause=visit.here)


def _reduce_window(visit: Visit) -> Tree:
    window = read_window(visit.instruction.attributes.get("window", ""))
    sizes = (window["size"], window["stride"], window["lhs_dilate"])
    changed = {dim for dim, numbers in enumerate(zip(*sizes, strict=True)) if numbers != (1, 1, 1)}
    combiner = combiner_of(visit.reading.module.called(visit.instruction, "to_apply"))
    value = visit.array(0)
    spreads = tuple(
        visit.used_whole(axis, [one]) if one.kind == "partial" and one.combiner != combiner else one
        for axis, one in enumerate(value.spreads)
    )
    return kept_dims(Value(spreads), changed, False) if len(visit.operands) == 2 else opaque(visit)


def _sort(visit: Visit) -> Tree:
    """Sort arrays along a dim: rows of other dims stay where they are, but each follows from all arrays."""
    dim = visit.number("dimensions", 0)
    values = [kept_dims(value, {dim}, False) for value in visit.arrays]

    result = Value(visit.by_axis(lambda axis, held: _together(visit, axis, held, values), values))
    return tuple(result for _ in values) if len(values) > 1 else result


def _along_last(visit: Visit) -> Tree:
    """Follow what works on each row of the last dim alone, such as the largest entries of each."""
    value = visit.array(0)
    spreads = tuple(
        visit.used_whole(axis, [one]) if one.kind == "partial" else one for axis, one in enumerate(value.spreads)
    )
    rows = kept_dims(Value(spreads), {len(visit.dims_of(0)) - 1}, False)
    return tuple(rows for _ in visit.instruction.shapes) if len(visit.instruction.shapes) > 1 else rows


def opaque(visit: Visit) -> Tree:
    """Follow an operation that is only known to give equal results for equal operands."""
    spreads = visit.by_axis(lambda axis, held: visit.used_whole(axis, held), _arrays_in(visit.operands))
    result = Value(spreads)
    return tuple(result for _ in visit.instruction.shapes) if len(visit.instruction.shapes) != 1 else result


def _arrays_in(operands: tuple[Tree, ...]) -> list[Value]:
    return [array for one in operands for array in ([one] if isinstance(one, Value) else _arrays_in(one))]


REDUCTION: Rules = {
    "fft": opaque,
    "cholesky": opaque,
    "triangular-solve": opaque,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "rng-bit-generator": opaque,
    "select-and-scatter": opaque,
    "sort": _sort,
    "topk": _along_last,
}

REDUCTION_CALLS: Rules = {"TopK": _along_last, "__gpu$TopK": _along_last}
