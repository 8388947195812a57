"""Which permutations of the devices along an axis a compiler has a reason for."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from outlay.analysis.hlo.groups import Groups

_MAX_SHOWN = 4


def odd_pairs(pairs: Groups, sizes: Sequence[int]) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    """Return the axis and the pairs, in its positions, of a permutation along one axis that follows no pattern.

    Parts move by the same distance, are reversed, or, where an axis is used as two, move along one of these or change
    their order. Permutations along several axes are not judged.

    Args:
        pairs: (source, target) pairs of devices.
        sizes: the size of each mesh axis, the slowest first.

    Examples:
        >>> odd_pairs(((0, 1), (1, 2), (2, 3), (3, 0)), (4,)) is None
        True
        >>> odd_pairs(((0, 1), (1, 3), (2, 2), (3, 0)), (4,))
        (0, ((0, 1), (1, 3), (2, 2), (3, 0)))
        >>> odd_pairs(((0, 1), (1, 2)), (6,)) is None, odd_pairs(((0, 1), (2, 3), (3, 4)), (6,)) is None
        (True, False)
        >>> odd_pairs(((0, 1), (2, 3), (3, 0)), (4,))
        (0, ((0, 1), (2, 3), (3, 0)))
    """
    moves = [(_coordinates(source, sizes), _coordinates(target, sizes)) for source, target in pairs]
    moved = [axis for axis in range(len(sizes)) if any(one[axis] != other[axis] for one, other in moves)]
    if len(moved) != 1:
        return None
    (axis,) = moved
    along = tuple(sorted({(one[axis], other[axis]) for one, other in moves}))
    is_regular = any(
        all(pattern[source] == target for source, target in along) and not _has_hole(along, pattern)
        for pattern in _patterns(sizes[axis])
    )
    beside = math.prod(sizes) // sizes[axis]
    # Devices that differ along other axes do alike, if all of them take part.
    is_alike = len(moves) == len(along) * beside or len({one[:axis] + one[axis + 1 :] for one, _ in moves}) < beside
    return None if is_regular and is_alike else (axis, along)


def _has_hole(along: Sequence[tuple[int, int]], pattern: Sequence[int]) -> bool:
    """Return whether a pair is left out between others: at an end of a line nobody may be sent to."""
    sources = [source for source, _ in along]
    steps = {target - source for source, target in along if target != source}
    if len(steps) == 2:  # it comes round: then each device that another one waits for sends
        return any(target != source and source not in sources for source, target in enumerate(pattern))
    if len(steps) != 1:
        return False
    line = [source for source in range(sources[0], sources[-1] + 1) if pattern[source] - source in steps]
    return any(source not in sources for source in line)


def odd_groups(groups: Groups, sizes: Sequence[int], differing: Sequence[int]) -> str:
    """Return what is odd about groups that exchange, in words: sizes that differ, devices left out, no pattern.

    Args:
        groups: devices that exchange with one another.
        sizes: the size of each mesh axis, the slowest first.
        differing: the axes along which devices hold different numbers; along others any of them will do.

    Examples:
        >>> odd_groups(((0, 2), (1, 3)), (4,), [0]), odd_groups(((0, 2), (1,), (3,)), (4,), [0])
        ('', 'in groups of different sizes (2, 1, 1)')
        >>> odd_groups(((0, 3), (1, 2)), (2, 2), [0, 1]), odd_groups(((0, 3), (1, 2)), (2, 2), [1])
        ('in groups that follow no pattern: 0 and 3, 1 and 2', '')
    """
    num_devices = math.prod(sizes)
    lengths = [len(group) for group in groups]
    if len(set(lengths)) > 1:
        return f"in groups of different sizes ({', '.join(map(str, lengths[:_MAX_SHOWN]))})"
    if missing := sorted(set(range(num_devices)) - {device for group in groups for device in group}):
        return f"without the devices {', '.join(map(str, missing[:_MAX_SHOWN]))}"
    steps = [math.prod(sizes[axis + 1 :]) if axis in differing else 0 for axis in range(len(sizes))]
    places = [sorted(_place(device, sizes, steps) for device in group) for group in groups]
    if len({tuple(place - along[0] for place in along) for along in places}) > 1:
        listed = ", ".join(" and ".join(map(str, group[:_MAX_SHOWN])) for group in groups[:_MAX_SHOWN])
        return f"in groups that follow no pattern: {listed}"
    return ""


@functools.lru_cache(maxsize=64)
def _patterns(size: int) -> tuple[tuple[int, ...], ...]:
    """Return the targets by source of each permutation that has a reason."""
    return tuple(dict.fromkeys(_each_pattern(size)))


def _each_pattern(size: int) -> Iterator[tuple[int, ...]]:
    every = range(size)
    for step in every:
        yield tuple((at + step) % size for at in every)
        yield tuple((step - at) % size for at in every)
    for inner in (part for part in range(2, size) if size % part == 0):
        outer = size // inner
        for step in range(1, inner):
            yield tuple(at - at % inner + (at + step) % inner for at in every)
        yield tuple(at % inner * outer + at // inner for at in every)


def _place(device: int, sizes: Sequence[int], steps: Sequence[int]) -> int:
    return sum(place * step for place, step in zip(_coordinates(device, sizes), steps, strict=True))


def _coordinates(position: int, sizes: Sequence[int]) -> tuple[int, ...]:
    coordinates = []
    for size in reversed(sizes):
        position, coordinate = divmod(position, size)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))
