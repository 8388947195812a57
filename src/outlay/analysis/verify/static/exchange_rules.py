"""How values are spread after collectives, whatever their spelling: start and done, tuples, groups in any form."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from outlay.analysis.hlo.groups import Groups, axes_of, groups_of
from outlay.analysis.verify.static.device_numbers import axis_steps, value_of
from outlay.analysis.verify.static.neighbours import odd_groups, odd_pairs
from outlay.analysis.verify.static.reduction_rules import combiner_of
from outlay.analysis.verify.static.spreads import GONE, REPLICATED, UNKNOWN, Split, Spread, Tree, Value, split_along
from outlay.analysis.verify.static.visit import Rules, Visit

_STARTS = "-start"


@dataclass(frozen=True)
class Exchange:
    """The devices that exchange with one another.

    Attributes:
        axes: the mesh axes along which the members of a group differ; empty if groups are no whole axes.
        touched: the axes along which any two members differ.
        steps: by axis, how many places in its group the next device is further; empty if places follow no grid.
        size: how many devices a group has.
    """

    axes: tuple[int, ...]
    touched: tuple[int, ...]
    steps: dict[int, int]
    size: int


def exchange_of(visit: Visit) -> Exchange | None:
    """Return who exchanges with whom; None if the text does not tell, or if nobody does."""
    groups = groups_of(visit.reading.module, visit.instruction)
    if not groups:
        return None
    if visit.reading.by_compiler:
        _check_groups(visit, groups)
    if len({len(group) for group in groups}) > 1:
        return None
    return _exchange(groups, visit.reading.axes)


_odd_groups = functools.lru_cache(maxsize=1024)(odd_groups)


def _check_groups(visit: Visit, groups: Groups) -> None:
    sizes = tuple(size for _, size in visit.reading.axes)
    for value in visit.arrays:
        differing = tuple(axis for axis, one in enumerate(value.spreads) if one.kind != "replicated")
        if odd := _odd_groups(groups, sizes, differing):
            visit.note("numbers of devices", (*differing, 0)[0], Spread("varying"), f"exchanges {odd}")
            return


@functools.lru_cache(maxsize=1024)
def _exchange(groups: Groups, axes: tuple[tuple[str, int], ...]) -> Exchange:
    names = [name for name, _ in axes]
    sizes = [size for _, size in axes]
    whole = tuple(names.index(name) for name in axes_of(groups, axes, permutation=False))
    places = np.zeros(int(np.prod(sizes)), np.int64)
    touched: set[int] = set()
    coordinates = np.stack(np.unravel_index(np.arange(len(places)), sizes))
    for group in groups:
        places[list(group)] = range(len(group))
        members = coordinates[:, list(group)]
        touched.update(axis for axis in range(len(sizes)) if (members[axis] != members[axis][0]).any())
    grid = axis_steps(places, axes)
    steps = {axis: grid[1][axis] for axis in whole} if grid and grid[0] == 0 else {}
    return Exchange(whole, tuple(sorted(touched)), steps, len(groups[0]))


def _returned(visit: Visit, results: list[Value]) -> Tree:
    """Return the results as the instruction spells them: most starts return their operands besides."""
    one = visit.instruction
    value = results[0] if len(results) == 1 else tuple(results)
    if not one.opcode.endswith(_STARTS) or one.opcode == "all-reduce-start":
        return value
    return visit.operands[0] if len(visit.operands) == 1 else visit.operands, value


Alone = Callable[[Visit, Value, tuple[int, ...], Exchange], Value]


def _each(rule: Alone) -> Callable[[Visit], Tree]:
    """Return the rule of a collective from that of one of its arrays."""

    def follow(visit: Visit) -> Tree:
        exchange = exchange_of(visit)
        results = []
        for number, value in enumerate(visit.arrays):
            if exchange is None:
                results.append(visit.unknown)
            elif exchange.size == 1:
                results.append(value)
            else:
                results.append(rule(visit, value, visit.dims_of(number), exchange))
        return _returned(visit, results)

    return follow


def _all_reduced(visit: Visit, value: Value, dims: tuple[int, ...], exchange: Exchange) -> Value:
    combiner = combiner_of(visit.reading.module.called(visit.instruction, "to_apply"))
    spreads = [
        _summed(visit, axis, one, value, exchange, combiner)
        if axis in exchange.touched
        else _beside(visit, axis, one, combiner)
        for axis, one in enumerate(value.spreads)
    ]
    parts = tuple(part._replace(value=_all_reduced(visit, part.value, dims, exchange)) for part in value.parts)
    return Value(tuple(spreads), value.uniform, value.is_zero and combiner == "add", is_unscaled=True, parts=parts)


def _summed(visit: Visit, axis: int, one: Spread, value: Value, exchange: Exchange, combiner: str) -> Spread:
    if axis not in exchange.axes:  # along a part of the axis only
        return REPLICATED if one.kind == "replicated" else UNKNOWN
    is_whole = one.kind == "replicated" and value.is_unscaled and not value.is_zero
    if is_whole and combiner == "add" and visit.reading.by_compiler:
        words = f"is summed over {visit.reading.axes[axis][1]} devices, all of which have the whole of it already"
        visit.note("sum doubled", axis, one, words)
    return REPLICATED


def _beside(visit: Visit, axis: int, one: Spread, combiner: str) -> Spread:
    """Return the spread over an axis along which nothing is exchanged."""
    if one.kind == "partial" and one.combiner != combiner:
        return visit.used_whole(axis, [one])
    return one


def _scattered(visit: Visit, value: Value, dims: tuple[int, ...], exchange: Exchange) -> Value:
    dim = visit.number("dimensions", 0)
    summed = _all_reduced(visit, value, dims, exchange)
    if exchange.axes and not exchange.steps and visit.reading.by_compiler:
        words = "gives parts to devices in an order that follows no grid"
        visit.note("order of parts", exchange.axes[0], Spread("split"), words)
    size = dims[dim] // exchange.size
    spreads = []
    for axis, one in enumerate(summed.spreads):
        if axis in exchange.axes:
            parts = [Split(dim, size, exchange.steps[axis])] if axis in exchange.steps else []
            one = split_along(parts, visit.here)
        elif axis in exchange.touched:
            one = UNKNOWN
        elif one.kind == "split":
            one = split_along(_finer(one, dim, dims[dim], size, exchange.size), one.cause)
        spreads.append(one)
    return Value(tuple(spreads), value.uniform, summed.is_zero, is_unscaled=True)


def _finer(one: Spread, dim: int, full: int, size: int, times: int) -> list[Split]:
    """Return a split once others split its parts further along a dim."""
    same = [split for split in one.splits if split.dim != dim]
    cut = [Split(dim, size, split.below * times) for split in one.splits if split.dim == dim and split.inner == full]
    return [*same, *cut]


def _gathered(visit: Visit, value: Value, dims: tuple[int, ...], exchange: Exchange) -> Value:
    dim = visit.number("dimensions", 0)
    _check_order(visit, value, dims, exchange, dim)
    lowest = min(
        (below for axis in exchange.axes for below in [_below(value.spreads[axis], dim, dims)] if below), default=0
    )
    spreads = []
    for axis, one in enumerate(value.spreads):
        if axis in exchange.touched:
            one = _gathered_along(visit, axis, one, exchange, dims[dim])
        elif one.kind == "split":
            one = split_along(_coarser(one, dim, dims[dim], lowest, exchange.size), one.cause)
        spreads.append(one)
    # Along the dim it is uniform only if it was so on every device alike.
    return Value(tuple(spreads), value.uniform - {dim}, value.is_zero, is_unscaled=value.is_unscaled)


def _gathered_along(visit: Visit, axis: int, one: Spread, exchange: Exchange, size: int) -> Spread:
    if axis not in exchange.axes:
        return REPLICATED if one.kind == "replicated" else UNKNOWN
    # Summands along a new dim of size one may be added afterwards: a sum in two steps.
    if one.kind == "partial" and one.combiner == "add" and size > 1 and visit.reading.by_compiler:
        visit.note("sum missing", axis, one, "is gathered from the devices that have a summand of it each, not summed")
    return REPLICATED


def _below(one: Spread, dim: int, dims: tuple[int, ...]) -> int:
    """Return over how many devices a dim is split more finely than by this split of all of it; 0 if it is not."""
    return next((split.below for split in one.splits if split.dim == dim and split.inner == dims[dim]), 0)


def _coarser(one: Spread, dim: int, size: int, lowest: int, times: int) -> list[Split]:
    """Return a split along another axis once parts of a dim are gathered."""
    readings = []
    for split in one.splits:
        if split.dim == dim and split.inner == size and lowest and split.below > lowest:
            split = Split(dim, size * times, split.below // times)
        readings.append(split)
    return readings


def _check_order(visit: Visit, value: Value, dims: tuple[int, ...], exchange: Exchange, dim: int) -> None:
    """Note parts that are put together in another order than that in which they were split."""
    below = {axis: _below(value.spreads[axis], dim, dims) for axis in exchange.axes}
    if not exchange.axes or not all(below.values()) or not visit.reading.by_compiler:
        return
    expected, times = {}, 1
    for axis in sorted(exchange.axes, key=lambda axis: below[axis]):
        expected[axis] = times
        times *= visit.reading.axes[axis][1]
    if expected != exchange.steps:
        axis = exchange.axes[0]
        visit.note(
            "order of parts",
            axis,
            Spread("split"),
            "puts parts together in another order than that in which they were split",
        )


def _exchanged_pieces(visit: Visit) -> Tree:
    """Follow an all-to-all: of one array along a dim; of several arrays, one for each member, no more is known."""
    exchange = exchange_of(visit)
    if exchange is None:
        return _returned(visit, [visit.unknown for _ in visit.arrays])
    if exchange.size == 1:
        return _returned(visit, visit.arrays)
    if "dimensions" not in visit.instruction.attributes:
        return _returned(visit, [_unknown_along(value, exchange) for value in visit.arrays])
    dim = visit.number("dimensions", 0)
    return _returned(
        visit, [_turned(visit, value, visit.dims_of(at), exchange, dim) for at, value in enumerate(visit.arrays)]
    )


def _unknown_along(value: Value, exchange: Exchange) -> Value:
    spreads = tuple(UNKNOWN if axis in exchange.touched else one for axis, one in enumerate(value.spreads))
    return Value(spreads)


def _turned(visit: Visit, value: Value, dims: tuple[int, ...], exchange: Exchange, dim: int) -> Value:
    """Follow parts of a dim that go to one device each, while the parts of another dim come together."""
    size = dims[dim] // exchange.size
    spreads = []
    for axis, one in enumerate(value.spreads):
        if axis in exchange.axes and axis in exchange.steps and one.kind in ("replicated", "split"):
            one = split_along(_turned_to(one, dim, dims, size, exchange.steps[axis]), one.cause or visit.here)
        elif axis in exchange.touched:
            one = visit.used_whole(axis, [one]) if one.kind == "partial" else UNKNOWN
        elif one.kind == "split":
            one = split_along(_finer(one, dim, dims[dim], size, exchange.size), one.cause)
        spreads.append(one)
    return Value(tuple(spreads))


def _turned_to(one: Spread, dim: int, dims: tuple[int, ...], size: int, below: int) -> list[Split]:
    """Return the readings of a value whose parts along a dim went to one device each."""
    back = {split for split in one.splits if split.dim == dim and split.inner == size}
    readings = [Split(dim, dims[dim], below)] if back else []
    if back and back == one.splits:
        return readings
    if size > 1:
        return [*readings, Split(dim, size, below)]
    # Each piece was an entry: which dim it is a part of, the text does not tell. It is none that is whole now.
    others = {*range(len(dims))} - {dim} - {split.dim for split in one.splits}
    to_one_device = [Split(dim, 1, below), Split(GONE, 1, below)]
    return [*readings, *to_one_device, *(Split(other, dims[other], below) for other in others)]


def _permuted(visit: Visit) -> Tree:
    """Follow values that each device sends to another: what is not the same on all is another device's afterwards."""
    pairs = groups_of(visit.reading.module, visit.instruction)
    odd = odd_pairs(pairs, [size for _, size in visit.reading.axes]) if visit.reading.by_compiler else None
    if odd is not None:
        axis, along = odd
        listed = ", ".join(f"{source} to {target}" for source, target in along[:8])
        visit.note("numbers of devices", axis, Spread("varying"), f"sends between devices in no pattern: {listed}")
    return _returned(visit, [_sent(value, pairs, visit) if pairs else visit.unknown for value in visit.arrays])


def _sent(value: Value, pairs: Groups, visit: Visit) -> Value:
    axes = visit.reading.axes
    num_devices = visit.reading.module.num_devices
    source = np.full(num_devices, -1, np.int64)
    for pair in pairs:
        source[pair[1]] = pair[0]
    coordinates = np.stack(np.unravel_index(np.arange(num_devices), [size for _, size in axes]))
    is_complete = bool((source >= 0).all())
    moved = [axis for axis in range(len(axes)) if (coordinates[axis][source] != coordinates[axis])[source >= 0].any()]
    spreads = []
    for axis, one in enumerate(value.spreads):
        if not is_complete and not _same_along(source >= 0, axis, axes):
            # Who is sent nothing has zeros.
            one = one if value.is_zero else Spread("varying", is_loose=True, cause=visit.here)
        elif axis in moved and one.kind in ("split", "varying"):
            one = Spread("varying", is_loose=True, cause=one.cause or visit.here)
        elif axis not in moved and one.kind != "replicated" and not _alike_along(source, axis, axes):
            one = UNKNOWN
        elif axis not in moved and one.kind == "replicated" and not _from_alike(value, source, axis, axes):
            one = Spread("varying", is_loose=True, cause=visit.here)
        spreads.append(one)
    return Value(tuple(spreads), value.uniform if is_complete else frozenset(), value.is_zero)


def _same_along(flags: np.ndarray, axis: int, axes: Sequence[tuple[str, int]]) -> bool:
    grid = flags.reshape([size for _, size in axes])
    return bool((grid == np.take(grid, [0], axis=axis)).all())


def _alike_along(source: np.ndarray, axis: int, axes: Sequence[tuple[str, int]]) -> bool:
    """Return whether devices along an axis are sent from devices that differ along it as they do themselves."""
    sizes = [size for _, size in axes]
    coordinates = np.stack(np.unravel_index(np.maximum(source, 0), sizes)).reshape(len(sizes), *sizes)
    others = np.delete(coordinates, axis, axis=0)
    return bool((others == np.take(others, [0], axis=axis + 1)).all())


def _from_alike(value: Value, source: np.ndarray, axis: int, axes: Sequence[tuple[str, int]]) -> bool:
    """Return whether devices along an axis are sent the same: from devices that differ only where it does not."""
    sizes = [size for _, size in axes]
    coordinates = np.stack(np.unravel_index(np.maximum(source, 0), sizes)).reshape(len(sizes), *sizes)
    differing = [at for at, one in enumerate(value.spreads) if one.kind != "replicated"]
    chosen = coordinates[differing]
    return bool((chosen == np.take(chosen, [0], axis=axis + 1)).all())


def _from_first(visit: Visit, value: Value, dims: tuple[int, ...], exchange: Exchange) -> Value:
    spreads = tuple(
        REPLICATED if axis in exchange.axes else (UNKNOWN if axis in exchange.touched else one)
        for axis, one in enumerate(value.spreads)
    )
    return Value(spreads, value.uniform, value.is_zero)


def _partition_id(visit: Visit) -> Tree:
    return value_of(np.arange(visit.reading.module.num_devices), visit.reading.axes, visit.here)


def _replica_id(visit: Visit) -> Tree:
    reading = visit.reading
    return value_of(np.arange(reading.module.num_devices) // reading.module.num_partitions, reading.axes, visit.here)


def _started(visit: Visit) -> Tree:
    started = visit.operands[0]
    return started[1] if isinstance(started, tuple) and len(started) > 1 else visit.unknown


def _own_random_numbers(visit: Visit) -> Tree:
    """Follow numbers that each device draws from a generator of its own."""
    random = Spread("varying", cause=visit.here)
    value = Value(tuple(random if size > 1 else REPLICATED for _, size in visit.reading.axes))
    return tuple(value for _ in visit.instruction.shapes) if len(visit.instruction.shapes) > 1 else value


_FOLLOWED = (
    ("all-gather", _each(_gathered)),
    ("all-reduce", _each(_all_reduced)),
    ("all-to-all", _exchanged_pieces),
    ("collective-broadcast", _each(_from_first)),
    ("collective-permute", _permuted),
    ("reduce-scatter", _each(_scattered)),
)
EXCHANGE: Rules = {
    **{f"{name}{ending}": rule for name, rule in _FOLLOWED for ending in ("", _STARTS)},
    "all-reduce-done": lambda visit: visit.operands[0],
    **{f"{name}-done": _started for name, _ in _FOLLOWED if name != "all-reduce"},
    "partition-id": _partition_id,
    "replica-id": _replica_id,
    "rng": _own_random_numbers,
    "rng-get-and-update-state": _own_random_numbers,
}
