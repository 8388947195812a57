"""Which permutations of the devices along an axis a compiler has a reason for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from outlay.analysis.hlo.groups import Groups


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
    """
    moves = [(_coordinates(source, sizes), _coordinates(target, sizes)) for source, target in pairs]
    moved = [axis for axis in range(len(sizes)) if any(one[axis] != other[axis] for one, other in moves)]
    if len(moved) != 1:
        return None
    (axis,) = moved
    along = tuple(sorted({(one[axis], other[axis]) for one, other in moves}))
    is_regular = any(all(pattern[source] == target for source, target in along) for pattern in _patterns(sizes[axis]))
    return None if is_regular else (axis, along)


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


def _coordinates(position: int, sizes: Sequence[int]) -> tuple[int, ...]:
    coordinates = []
    for size in reversed(sizes):
        position, coordinate = divmod(position, size)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))
