"""What becomes of splits when the dims of an array are reshaped, put in another order, or reread by a bitcast."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from outlay.analysis.hlo.hlo_module import Shape
from outlay.analysis.verify.static.spreads import GONE, NOWHERE, Split

_NUMBER = re.compile(r"\d+")


def reshaped(splits: Iterable[Split], before: Sequence[int], after: Sequence[int]) -> frozenset[Split]:
    """Return the readings of a split after a reshape: wherever in memory the split's place is, a dim may begin.

    Args:
        splits: the readings before.
        before: the device's dims before.
        after: its dims after, with as many entries.

    Examples:
        >>> reshaped([Split(1, 4, 1)], (2, 4, 8), (8, 8))  # heads merged into the batch: no longer in one block
        frozenset({Split(dim=0, inner=4, below=1)})
        >>> sorted(reshaped([Split(0, 4, 1)], (4,), (1, 4)))  # either the new dim or the old one
        [Split(dim=0, inner=1, below=1), Split(dim=1, inner=4, below=1)]
        >>> sorted(reshaped([Split(0, 1, 1)], (1, 4), (4,)))  # one sample on each device: its dim may be gone
        [Split(dim=-1, inner=1, below=1), Split(dim=0, inner=4, below=1)]
    """
    before, after = tuple(before), tuple(after)
    groups = list(_groups(before, after))
    readings: set[Split] = set()
    for split in splits:
        if split.dim in NOWHERE:
            readings.add(split)
        if split.dim == GONE:
            readings.update(Split(dim, 1, split.below) for dim, size in enumerate(after) if size == 1)
        for old, new in groups:
            if split.dim in old:
                readings.update(_in_group(split, before, after, old, new))
                if before[split.dim] == 1 and (before != after):
                    readings.add(Split(GONE, 1, split.below))
    return frozenset(readings)


def _in_group(split: Split, before: Sequence[int], after: Sequence[int], old: range, new: range) -> Iterator[Split]:
    entries = split.inner * math.prod(before[dim] for dim in old if dim > split.dim)
    for dim in new:
        stride = math.prod(after[other] for other in new if other > dim)
        inner, rest = divmod(entries, stride)
        if rest == 0 and 1 <= inner <= after[dim] and after[dim] % inner == 0:
            yield Split(dim, inner, split.below)
    if entries == math.prod(before[dim] for dim in old):
        above = new.start - 1
        while above >= 0 and after[above] == 1:
            yield Split(above, 1, split.below)
            above -= 1
        if above >= 0 and before[split.dim] == 1:
            yield Split(above, 1, split.below)


def _groups(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[range, range]]:
    """Yield the shortest runs of dims that hold as many entries before and after."""
    old = new = 0
    while old < len(before) or new < len(after):
        start_old, start_new = old, new
        size_old = size_new = 1
        if old < len(before):
            size_old, old = before[old], old + 1
        if new < len(after):
            size_new, new = after[new], new + 1
        while size_old != size_new:
            if size_old < size_new and old < len(before):
                size_old, old = size_old * before[old], old + 1
            elif new < len(after):
                size_new, new = size_new * after[new], new + 1
            else:
                break
        # Dims of size one at the end belong to the last run.
        if new == len(after) or old == len(before):
            old = len(before) if all(size == 1 for size in before[old:]) else old
            new = len(after) if all(size == 1 for size in after[new:]) else new
        yield range(start_old, old), range(start_new, new)


def uniform_after(uniform: frozenset[int], before: Sequence[int], after: Sequence[int]) -> frozenset[int]:
    """Return the dims along which all entries are the same after a reshape.

    Examples:
        >>> sorted(uniform_after(frozenset({0, 1}), (2, 3, 5), (6, 5)))
        [0]
    """
    if len(uniform) == len(before):
        return frozenset(range(len(after)))
    return frozenset(
        dim for old, new in _groups(before, after) if len(old) and all(one in uniform for one in old) for dim in new
    )


def part_after(
    dim: int, start: int, end: int, before: Sequence[int], after: Sequence[int]
) -> tuple[int, int, int] | None:
    """Return the dim, start and end of a part of an array after a reshape; None if it is no part along one dim then.

    Examples:
        >>> part_after(1, 4, 8, (2, 8, 3), (2, 24)), part_after(1, 6, 24, (2, 24), (2, 8, 3))
        ((1, 12, 24), (1, 2, 8))
        >>> part_after(1, 4, 8, (2, 8), (16,)) is None
        True
    """
    for old, new in _groups(tuple(before), tuple(after)):
        if dim in old:
            leading = next((place for place in new if after[place] > 1), None)
            if leading is None or any(before[above] > 1 for above in old if above < dim):
                return None
            inner = math.prod(before[below] for below in old if below > dim)
            stride = math.prod(after[below] for below in new if below > leading)
            if start * inner % stride or end * inner % stride:
                return None
            return leading, start * inner // stride, end * inner // stride
    return None


def order_of(shape: Shape) -> tuple[int, ...]:
    """Return the dims in the order of memory, slowest first."""
    listed = tuple(map(int, _NUMBER.findall(shape.layout.partition(":")[0])))
    return listed[::-1] if len(listed) == len(shape.dims) else tuple(range(len(shape.dims)))


def permuted(splits: Iterable[Split], order: Sequence[int]) -> frozenset[Split]:
    """Return the readings after a transpose, whose new dims are old ones in this order."""
    place = {one: one for one in NOWHERE} | {old: new for new, old in enumerate(order)}
    return frozenset(Split(place[split.dim], split.inner, split.below) for split in splits)


def rank_map(splits: Iterable[Split], places: dict[int, int]) -> frozenset[Split]:
    """Return the readings of dims that are kept, by their new places; others are left out."""
    places = {**{one: one for one in NOWHERE}, **places}
    return frozenset(Split(places[one.dim], one.inner, one.below) for one in splits if one.dim in places)
