"""A global array cut into slabs, so that a transfer of the whole never holds more than one on the way.

A slab is an array itself: of every block the same few rows along one dim, laid side by side like the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlay.core.sizes import num_bytes
from outlay.place.bounds import Bounds, shape_of

MOST_BYTES = 64 * 2**20
"""Bytes of a slab, unless one row of every block is more already."""


@dataclass(frozen=True)
class Slabs:
    """How an array is cut.

    Attributes:
        local_shape: shape of every block.
        dim: the dim along which slabs are taken; None where one slab is everything.
        rows: rows of each block in a slab.
        shape: shape of a slab.
    """

    local_shape: tuple[int, ...]
    dim: int | None
    rows: int
    shape: tuple[int, ...]

    @property
    def starts(self) -> Sequence[int]:
        """Where in its block each slab starts; the last may overlap the one before it."""
        if self.dim is None:
            return (0,)
        length = self.local_shape[self.dim]
        return tuple(min(start, length - self.rows) for start in range(0, length, self.rows))

    def in_array(self, block: Bounds, start: int) -> tuple[slice, ...]:
        """What the slab holds of a block, as an index into the array."""
        return tuple(
            slice(low + start, low + start + self.rows) if dim == self.dim else slice(low, high)
            for dim, (low, high) in enumerate(block)
        )

    def in_slab(self, block: Bounds) -> tuple[slice, ...]:
        """What the slab holds of a block, as an index into the slab."""
        if self.dim is None:
            return tuple(slice(*piece) for piece in block)
        lows = [low for low, _ in block]
        lows[self.dim] = lows[self.dim] // self.local_shape[self.dim] * self.rows
        sizes = [self.rows if dim == self.dim else size for dim, size in enumerate(self.local_shape)]
        return tuple(slice(low, low + size) for low, size in zip(lows, sizes, strict=True))

    def in_block(self, start: int) -> tuple[slice, ...]:
        """What the slab holds of a block, as an index into the block."""
        return self.in_array(tuple((0, size) for size in self.local_shape), start)


def cut(shape: tuple[int, ...], dtype: object, block: Bounds, most_bytes: int) -> Slabs:
    """Cut along the longest dim of a block, into as few slabs as the bytes allow.

    >>> slabs = cut((16, 6), "float32", ((0, 4), (0, 6)), most_bytes=200)
    >>> slabs.shape, slabs.starts
    ((16, 3), (0, 3))
    """
    local = shape_of(block)
    total = num_bytes(shape, dtype)
    if total <= most_bytes or not local:
        return Slabs(local, None, 0, shape)
    dim = max(range(len(local)), key=lambda candidate: local[candidate])
    rows = max(1, most_bytes * local[dim] // total)
    blocks_along = shape[dim] // local[dim]
    return Slabs(local, dim, rows, (*shape[:dim], blocks_along * rows, *shape[dim + 1 :]))
