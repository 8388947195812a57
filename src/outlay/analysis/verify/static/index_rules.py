"""How values are spread after gathers, scatters and slices at computed positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from outlay.analysis.verify.static.device_numbers import axis_steps, computed, follows_grid, value_of
from outlay.analysis.verify.static.reduction_rules import combiner_of, opaque
from outlay.analysis.verify.static.shape_rules import sliced
from outlay.analysis.verify.static.split_dims import rank_map
from outlay.analysis.verify.static.spreads import (
    GONE,
    REPLICATED,
    SUMMED,
    UNKNOWN,
    Split,
    Spread,
    Tree,
    Value,
    mixed,
    split_along,
    summand_of,
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


def _grid(visit: Visit, start: np.ndarray | None, size: int, full: int | None) -> dict[int, int] | None:
    """Return for each axis along which devices take different parts of a dim over how many devices it is finer split.

    Args:
        visit: the instruction.
        start: where the part of each device begins.
        size: how many entries a part has.
        full: how many entries the dim has; None for those of all parts.

    Returns:
        None if the parts are not all of the dim, each once, in order.
    """
    if start is None or start.ndim != 1 or len(start) == 1:
        return None
    steps = axis_steps(start, visit.reading.axes)
    if steps is None or steps[0] != 0:
        return None
    below, expected = {}, 1
    for step, axis in sorted((step, axis) for axis, step in enumerate(steps[1]) if step):
        if step != size * expected:
            return None
        below[axis] = expected
        expected *= visit.reading.axes[axis][1]
    return below if full is None or expected * size == full else None


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
            if _grid(visit, starts[split.dim].numbers, size, before[split.dim]):
                readings.add(Split(split.dim, size, split.below * before[split.dim] // size))
    return split_along(readings, one.cause or visit.here)


def _cut_by_device(visit: Visit, axis: int, starts: list[Value], dim: int, before: tuple[int, ...]) -> Spread:
    size = visit.shape.dims[dim]
    below = _grid(visit, starts[dim].numbers, size, before[dim])
    _check_ends(visit, starts[dim], axis, size, before[dim])
    if below is None or axis not in below:
        return mixed((REPLICATED, starts[dim].spreads[axis]), visit.here)
    return split_along([Split(dim, size, below[axis])], visit.here)


def _check_ends(visit: Visit, start: Value, axis: int, size: int, full: int) -> None:
    """Note parts of equal size that begin so late that the last one is not there: it is cut elsewhere."""
    if start.numbers is None or not visit.reading.by_compiler:
        return
    numbers = start.numbers.ravel().astype(np.int64)
    is_by_parts = full % size == 0 and not (numbers % size).any()
    if is_by_parts and full == size * len(set(numbers.tolist())) and numbers.max() > full - size:
        words = f"takes parts of {size} entries from {numbers.min()} to {numbers.max() + size} of {full}"
        visit.note("numbers of devices", axis, start.spreads[axis], words)


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
        summand = summand_of([each for each in (one, other) if each.kind == "partial"])
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
        readings = frozenset(split for split in readings if split.dim != SUMMED)
        return split_along((split for split in readings if split.dim not in cut), one.cause or other.cause)
    result = visit.used_whole(axis, (one, other))
    blank = whole.is_zero or len(whole.uniform) == len(visit.dims_of(0))
    return replace(result, is_loose=True) if "replicated" in kinds and not blank and result != UNKNOWN else result


def _without_vector(visit: Visit, number: int) -> list[int]:
    """Return the dims of positions that count them, without the one that holds their entries."""
    vector = visit.number("index_vector_dim", len(visit.dims_of(number)))
    return [dim for dim in range(len(visit.dims_of(number))) if dim != vector]


def _by_rows(visit: Visit, dims: tuple[int, ...]) -> tuple[Value, list[tuple[int, int, int]]]:
    """Return places without counts of a device's rows, and the dims that each count pairs.

    A compiler writes what goes row by row as places of which one part is the number of the row.

    Args:
        visit: a gather or a scatter.
        dims: the dim of the array in which each number of a place counts.

    Returns:
        The places; for each count the dim of the array, that of the places, and how many places a row has.
    """
    indices = visit.array(1)
    vector = visit.number("index_vector_dim", len(visit.dims_of(1)))
    parts = [part for part in indices.parts if part.dim == vector and part.end - part.start == 1]
    if len(parts) != len(dims):
        return indices, []
    rows = {at: _counting(part.value, visit.dims_of(0)[dims[at]]) for at, part in enumerate(parts)}
    others = [part.value for at, part in enumerate(parts) if rows[at] is None]
    if len(others) == len(parts) or not others or any(one.spreads != others[0].spreads for one in others):
        return indices, []
    paired = [(dims[at], *row) for at, row in rows.items() if row is not None]
    return replace(indices, spreads=others[0].spreads), paired


def _counting(value: Value, size: int) -> tuple[int, int] | None:
    """Return the dim along which numbers count all entries of a dim, from zero on each device, and how often each."""
    numbers = value.numbers
    if numbers is None or len(numbers) > 1 or numbers.size % size:
        return None
    if size == 1:  # one row on each device
        return None if numbers.any() else (GONE, 1)
    times = numbers.size // size
    counting = [dim for dim, entries in enumerate(numbers.shape[1:]) if entries > 1]
    is_count = len(counting) == 1 and np.array_equal(numbers.ravel(), np.arange(numbers.size) // times)
    return (counting[0], times) if is_count else None


def _gather(visit: Visit) -> Tree:
    whole = sliced(visit.array(0))
    indices, rows = _by_rows(visit, visit.numbers("start_index_map"))
    offset = visit.numbers("offset_dims")
    collapsed = {*visit.numbers("collapsed_slice_dims"), *visit.numbers("operand_batching_dims")}
    sizes, before = visit.numbers("slice_sizes"), visit.dims_of(0)
    window = [dim for dim in range(len(before)) if dim not in collapsed]
    whole_places = {dim: at for dim, at in zip(window, offset, strict=False) if sizes[dim] == before[dim]}
    batch = [dim for dim in range(len(visit.shape.dims)) if dim not in offset]
    index_places = dict(zip(_without_vector(visit, 1), batch, strict=False))
    batching = (visit.numbers(f"{name}_batching_dims") for name in ("operand", "start_indices"))
    paired = [*((one, other, 1) for one, other in zip(*batching, strict=True)), *rows]

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
            shared = [s for s in at.splits if any(_in_row(s, pair) in one.splits for pair in paired)]
            if shared:
                return split_along(_mapped(shared, index_places), at.cause)
        return visit.used_whole(axis, held)

    return Value(visit.by_axis(rule, (whole, indices)))


def _mapped(splits: Iterable[Split], places: dict[int, int]) -> list[Split]:
    return list(rank_map(splits, places))


def _scatter(visit: Visit) -> Tree:
    if len(visit.operands) != 3:
        return opaque(visit)
    whole, updates = visit.array(0), visit.array(2)
    indices, rows = _by_rows(visit, visit.numbers("scatter_dims_to_operand_dims"))
    window = visit.numbers("update_window_dims")
    inserted = {*visit.numbers("inserted_window_dims"), *visit.numbers("input_batching_dims")}
    remaining = [dim for dim in range(len(visit.dims_of(0))) if dim not in inserted]
    before, sizes = visit.dims_of(0), visit.dims_of(2)
    from_window = {u: o for u, o in zip(window, remaining, strict=False) if sizes[u] == before[o]}
    counting = [dim for dim in range(len(sizes)) if dim not in window]
    from_index = dict(zip(_without_vector(visit, 1), counting, strict=False))
    batching = (visit.numbers(f"{name}_batching_dims") for name in ("input", "scatter_indices"))
    batched = [*((one, other, 1) for one, other in zip(*batching, strict=True)), *rows]
    combiner = combiner_of(visit.reading.module.called(visit.instruction, "to_apply"))
    own = _own_parts(visit, indices, visit.numbers("scatter_dims_to_operand_dims"))

    def rule(axis: int, held: list[Spread]) -> Spread:
        one, at, new = held
        if at.kind == "split" and (pairs := _row_by_row(at, new, updates, from_index)):
            if to_batch := [place for s in pairs for pair in batched if (place := _in_row(s, pair))]:
                return _written(visit, axis, (one, whole), (split_along(to_batch, new.cause), updates), set())
            summand = Spread("partial", combiner="add", cause=visit.here)
            is_sum = combiner == "add" and (one.kind == "partial" or whole.is_zero)
            return summand if is_sum else visit.used_whole(axis, held)
        if axis in own and new.kind == "replicated":
            # Places in the whole, turned into those in a device's part: what lies elsewhere is left out.
            return _written(visit, axis, (one, whole), (split_along([own[axis]], visit.here), updates), set())
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


def _in_row(split: Split, pair: tuple[int, int, int]) -> Split | None:
    """Return how an array with so many places in each row is split, by how the places are split."""
    dim, of_places, times = pair
    if split.dim != of_places or split.inner % times:
        return None
    return Split(dim, split.inner // times, split.below)


def _row_by_row(at: Spread, new: Spread, updates: Value, from_index: Mapping[int, int]) -> list[Split]:
    """Return the readings of places in which updates are split as they are, or are the same number for all of them."""
    pairs = []
    for split in at.splits:
        dim = from_index.get(split.dim, GONE)
        is_alike = new.kind == "replicated" and (dim in updates.uniform or (len(updates.uniform) and dim == GONE))
        if is_alike or Split(dim, split.inner, split.below) in new.splits:
            pairs.append(split)
    return pairs


def _own_parts(visit: Visit, indices: Value, dims: tuple[int, ...]) -> dict[int, Split]:
    """Return by axis which parts of an array devices have whose places are counted from where their part begins."""
    components = [indices]
    vector = visit.number("index_vector_dim", len(visit.dims_of(1)))
    if len(dims) > 1:
        components = [part.value for part in indices.parts if part.dim == vector and part.end - part.start == 1]
    parts: dict[int, Split] = {}
    for dim, component in zip(dims, components, strict=False):
        size = visit.dims_of(0)[dim]
        grid = _grid(visit, component.shift, size, None)
        parts.update({axis: Split(dim, size, below) for axis, below in (grid or {}).items()})
    return parts


INDEX: Rules = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
}
