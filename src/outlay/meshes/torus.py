"""Mesh axes along the dims of a TPU's torus, so that neighbours on an axis are neighbours in the machine. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np


def along_torus(torus: Sequence[int], sizes: Sequence[int]) -> np.ndarray:
    """Which chip of a torus stands where in a mesh: an array of the given sizes, of row-major positions in the torus.

    Each axis gets whole dims of the torus where its sizes allow it. Otherwise the axes, outermost first, share the dims
    in their order: an axis is then part of a dim, or runs over the end of one and the beginning of the next.

    Args:
        torus: size of each dim of the torus.
        sizes: size of each mesh axis, outermost first; they multiply to as many chips.

    >>> along_torus((2, 4, 2), (4, 4)).tolist()  # the first axis is dims 0 and 2, the second is dim 1
    [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    """
    chips = np.arange(math.prod(torus)).reshape(tuple(torus))
    chosen = next(_whole_dims(torus, tuple(range(len(torus))), sizes), None)
    if chosen is not None:
        chips = chips.transpose([dim for dims in chosen for dim in dims])
    return chips.reshape(tuple(sizes))


def _whole_dims(torus: Sequence[int], dims: Sequence[int], sizes: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """Every way to give each axis whole dims, with neighbouring dims for the innermost axis first."""
    if not sizes:
        if not dims:
            yield []
        return
    *outer, size = sizes
    fits = [some for some in _subsets(dims) if math.prod(torus[dim] for dim in some) == size]
    for some in sorted(fits, key=lambda some: (_gaps(some), tuple(-dim for dim in reversed(some)))):
        for found in _whole_dims(torus, [dim for dim in dims if dim not in some], outer):
            yield [*found, some]


def _subsets(dims: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(dims) + 1):
        yield from itertools.combinations(dims, count)


def _gaps(dims: Sequence[int]) -> int:
    return dims[-1] - dims[0] + 1 - len(dims) if dims else 0
