"""How values are spread after gathers, scatters and slices at computed positions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from outlay.analysis.verify.static.device_numbers import axis_steps, computed, follows_grid, value_of
from outlay.analysis.verify.static.reduction_rules import combiner_of, opaque
from outlay.analysis.verify.static.shape_rules import sliced
from outlay.analysis.verify.static.split_dims import rank_map
from outlay.analysis.verify.static.spreads import (
    GONE,
    REPLICATED,
    UNKNOWN,
    Split,
    Spread,
    Tree,
    Value,
    mixed,
    split_along,
)
from outlay.analysis.verify.static.visit import Rules, Visit


def _dynamic_slice(visit: Visit) -> Tree:
    values = visit.arrays
    whole, starts = values[0], values[1:]
    before, after = visit.dims_of(0), visit.shape.dims
    if len(starts) != len(before):
        return opaque(visit)
    numbers = [one.numbers for one in values]
    known = [one for one in numbers if one is not None]
    if len(known) == len(numbers) and (result := computed(visit.instruction, known)) is not None:
        _check_grid(visit, values, result)
        return value_of(result, visit.reading.axes, visit.here)
    cut = {dim for dim, sizes in enumerate(zip(before, after, strict=True)) if sizes[0] != sizes[1]}
    if whole.numbers is not None:
        # Of a list with a number for each device, places that differ may hold the same.
        loose = visit.by_axis(lambda axis, held: replace(mixed(held, visit.here), is_loose=True), values)
        return sliced(Value(loose))
    whole = sliced(whole) if cut else whole
    spreads: list[Spread] = []
    for axis, one in enumerate(whole.spreads):
        moving = {dim for dim in cut if starts[dim].spreads[axis] != REPLICATED}
        if not moving:
            if one.kind == "split":
                one = _after_cuts(visit, one, axis, starts, cut, before)
        elif one.kind == "replicated" and len(moving) == 1:
            one = _cut_by_device(visit, axis, starts, moving.pop(), before)
        else:
            one = visit.used_whole(axis, (one, *(starts[dim].spreads[axis] for dim in moving)))
        spreads.append(one)
    return Value(tuple(spreads), whole.uniform, whole.is_zero)


def _grid(visit: Visit, start: Value, size: int, full: int) -> dict[int, int] | None:
    """Return for each axis along which devices take different parts of a dim over how many devices it is finer split.

    None if the parts are not all of the dim, each once, in order.
    """
    if start.numbers is None or start.numbers.ndim != 1 or len(start.numbers) == 1:
        return None
    steps = axis_steps(start.numbers, visit.reading.axes)
    if steps is None or steps[0] != 0:
        return None
    below, expected = {}, 1
    for step, axis in sorted((step, axis) for axis, step in enumerate(steps[1]) if step):
        if step != size * expected:
            return None
        below[axis] = expected
        expected *= visit.reading.axes[axis][1]
    return below if expected * size == full else None


def _after_cuts(
    visit: Visit, one: Spread, axis: int, starts: list[Value], cut: set[int], before: tuple[int, ...]
) -> Spread:
    """Return a split after slices that devices along its own axis take alike: others may split the same dim finer."""
    readings = set()
    for split in one.splits:
        if split.dim not in cut:
            readings.add(split)
        elif split.inner == before[split.dim]:
            size = visit.shape.dims[split.dim]
            if _grid(visit, starts[split.dim], size, before[split.dim]):
                readings.add(Split(split.dim, size, split.below * before[split.dim] // size))
    return split_along(readings, one.cause or visit.here)


def _cut_by_device(visit: Visit, axis: int, starts: list[Value], dim: int, before: tuple[int, ...]) -> Spread:
    size = visit.shape.dims[dim]
    below = _grid(visit, starts[dim], size, before[dim])
    if below is None or axis not in below:
        return mixed((REPLICATED, starts[dim].spreads[axis]), visit.here)
    return split_along([Split(dim, size, below[axis])], visit.here)


def _check_grid(visit: Visit, values: list[Value], result: np.ndarray) -> None:
    """Note a list with a number for each device whose numbers follow no grid of devices."""
    table, place = values[0].numbers, values[1].numbers
    num_devices = visit.reading.module.num_devices
    if table is None or place is None or table.shape != (1, num_devices) or not visit.reading.by_compiler:
        return
    if not np.array_equal(place.ravel(), np.arange(num_devices)):
        return
    numbers = result.ravel().astype(np.int64)
    if not follows_grid(numbers, [size for _, size in visit.reading.axes]):
        grid = numbers.reshape([size for _, size in visit.reading.axes])
        differing = [axis for axis in range(grid.ndim) if (grid != np.take(grid, [0], axis=axis)).any()]
        axis = differing[0] if differing else 0
        listed = ", ".join(map(str, numbers[:8].tolist())) + (", ..." if num_devices > 8 else "")
        visit.note(
            "numbers of devices",
            axis,
            Spread("varying"),
            f"holds numbers for the devices that follow no grid: {listed}",
        )


def _dynamic_update_slice(visit: Visit) -> Tree:
    whole, update, *starts = visit.arrays
    before, size = visit.dims_of(0), visit.dims_of(1)
    cut = {dim for dim, sizes in enumerate(zip(before, size, strict=True)) if sizes[0] != sizes[1]}
    spreads = []
    for axis, one in enumerate(whole.spreads):
        other = update.spreads[axis]
        moving = [start.spreads[axis] for dim, start in enumerate(starts) if dim in cut]
        if any(start != REPLICATED for start in moving):
            spreads.append(visit.used_whole(axis, (one, other, *moving)))
        else:
            spreads.append(_written(visit, axis, (one, whole), (other, update), cut))
    return Value(tuple(spreads), frozenset(), whole.is_zero and update.is_zero)


def _written(
    visit: Visit, axis: int, target: tuple[Spread, Value], update: tuple[Spread, Value], cut: set[int]
) -> Spread:
    """Return what an array is once a part of it is written, at the same place by all devices."""
    (one, whole), (other, part) = target, update
    kinds = {one.kind, other.kind}
    if kinds == {"replicated"}:
        return REPLICATED
    if kinds <= {"partial", "replicated"}:
        summand = one if one.kind == "partial" else other
        zero = (one.kind == "partial" or whole.is_zero) and (other.kind == "partial" or part.is_zero)
        if zero and {one.combiner, other.combiner} <= {"add", ""}:
            return summand
    elif kinds <= {"split", "replicated"}:
        readings = (one if one.kind == "split" else other).splits
        for spread, value in ((one, whole), (other, part)):
            if spread.kind == "split":
                readings &= spread.splits
            else:
                readings = frozenset(split for split in readings if split.dim in value.uniform or split.dim == GONE)
        return split_along((split for split in readings if split.dim not in cut), one.cause or other.cause)
    result = visit.used_whole(axis, (one, other))
    blank = whole.is_zero or len(whole.uniform) == len(visit.dims_of(0))
    return replace(result, is_loose=True) if "replicated" in kinds and not blank and result != UNKNOWN else result


def _without_vector(visit: Visit, number: int) -> list[int]:
    """Return the dims of positions that count them, without the one that holds their entries."""
    vector = visit.number("index_vector_dim", len(visit.dims_of(number)))
    return [dim for dim in range(len(visit.dims_of(number))) if dim != vector]


def _gather(visit: Visit) -> Tree:
    whole, indices = sliced(visit.array(0)), visit.array(1)
    offset = visit.numbers("offset_dims")
    collapsed = {*visit.numbers("collapsed_slice_dims"), *visit.numbers("operand_batching_dims")}
    sizes, before = visit.numbers("slice_sizes"), visit.dims_of(0)
    window = [dim for dim in range(len(before)) if dim not in collapsed]
    whole_places = {dim: at for dim, at in zip(window, offset, strict=False) if sizes[dim] == before[dim]}
    batch = [dim for dim in range(len(visit.shape.dims)) if dim not in offset]
    index_places = dict(zip(_without_vector(visit, 1), batch, strict=False))
    paired = list(
        zip(visit.numbers("operand_batching_dims"), visit.numbers("start_indices_batching_dims"), strict=True)
    )

    def rule(axis: int, held: list[Spread]) -> Spread:
        one, at = held
        if at.kind == "replicated":
            if one.kind == "partial":
                return one
            if one.kind == "split":
                return split_along(_mapped(one.splits, whole_places), one.cause)
        elif at.kind == "split" and one.kind == "replicated":
            allowed = {pair[1] for pair in paired if pair[0] not in whole.uniform}
            return split_along(_mapped((s for s in at.splits if s.dim not in allowed), index_places), at.cause)
        elif at.kind == one.kind == "split":
            shared = [s for s in at.splits for o in one.splits if (o.dim, s.dim) in paired and o[1:] == s[1:]]
            if shared:
                return split_along(_mapped(shared, index_places), at.cause)
        return visit.used_whole(axis, held)

    return Value(visit.by_axis(rule, (whole, indices)))


def _mapped(splits: Iterable[Split], places: dict[int, int]) -> list[Split]:
    return list(rank_map(splits, places))


def _scatter(visit: Visit) -> Tree:
    if len(visit.operands) != 3:
        return opaque(visit)
    whole, indices, updates = (visit.array(number) for number in range(3))
    window = visit.numbers("update_window_dims")
    inserted = {*visit.numbers("inserted_window_dims"), *visit.numbers("input_batching_dims")}
    remaining = [dim for dim in range(len(visit.dims_of(0))) if dim not in inserted]
    before, sizes = visit.dims_of(0), visit.dims_of(2)
    from_window = {u: o for u, o in zip(window, remaining, strict=False) if sizes[u] == before[o]}
    counting = [dim for dim in range(len(sizes)) if dim not in window]
    from_index = dict(zip(_without_vector(visit, 1), counting, strict=False))
    batched = dict(
        zip(visit.numbers("scatter_indices_batching_dims"), visit.numbers("input_batching_dims"), strict=True)
    )
    combiner = combiner_of(visit.reading.module.called(visit.instruction, "to_apply"))

    def rule(axis: int, held: list[Spread]) -> Spread:
        one, at, new = held
        if at.kind == "split" and new.kind == "split":
            pairs = [s for s in at.splits if Split(from_index.get(s.dim, -1), s.inner, s.below) in new.splits]
            if pairs and all(s.dim not in batched for s in pairs):
                summand = Spread("partial", combiner="add", cause=visit.here)
                is_sum = combiner == "add" and (one.kind == "partial" or whole.is_zero)
                return summand if is_sum else visit.used_whole(axis, held)
            to_batch = [Split(batched[s.dim], s.inner, s.below) for s in pairs if s.dim in batched]
            return _written(visit, axis, (one, whole), (split_along(to_batch, new.cause), updates), set())
        if at.kind != "replicated":
            return visit.used_whole(axis, held)
        if new.kind == "split":
            new = split_along(_mapped(new.splits, from_window), new.cause)
        if new.kind == "partial" and combiner != "add":
            return visit.used_whole(axis, held)
        uniform = frozenset(from_window[dim] for dim in updates.uniform if dim in from_window)
        part = Value(updates.spreads, uniform, updates.is_zero)
        readings = one
        if one.kind == "split":
            readings = split_along((s for s in one.splits if s.dim in from_window.values()), one.cause)
        return _written(visit, axis, (readings, whole), (new, part), set())

    return Value(visit.by_axis(rule, (whole, indices, updates)))


INDEX: Rules = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
}
