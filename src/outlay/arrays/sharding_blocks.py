"""Blocks: the distinct parts that a sharding cuts an array into, and the slabs in which they travel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
from jax.sharding import Sharding

from outlay.core.array_leaves import num_bytes

Bounds = tuple[tuple[int, int], ...]
"""Start and stop in each dim."""

MOST_BYTES = 64 * 2**20
"""Bytes of a slab, unless one row of every block is more."""


def blocks(shape: tuple[int, ...], sharding: Sharding, *, process: int | None = None) -> dict[Bounds, list[jax.Device]]:
    """Return every distinct block, in the order of the devices, with the devices that hold it.

    Args:
        shape: the global shape.
        sharding: where the array lives.
        process: return only what the devices of this process hold; by default all blocks.

    Example:
        >>> sharding = jax.NamedSharding(outlay.mesh(x=4, y=2), P("x"))
        >>> {bounds: len(devices) for bounds, devices in blocks((8,), sharding).items()}
        {((0, 2),): 2, ((2, 4),): 2, ((4, 6),): 2, ((6, 8),): 2}
    """
    holders: dict[Bounds, list[jax.Device]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        if process in (None, device.process_index):
            holders.setdefault(of_index(index, shape), []).append(device)
    return holders


def of_index(index: Iterable[slice], shape: tuple[int, ...]) -> Bounds:
    """Return the bounds of an index of JAX, in which None is the start or the end of a dim."""
    return tuple(piece.indices(size)[:2] for piece, size in zip(index, shape, strict=True))


def as_index(bounds: Bounds) -> tuple[slice, ...]:
    """Return bounds as an index into the array."""
    return tuple(slice(*piece) for piece in bounds)


def shape_of(bounds: Bounds) -> tuple[int, ...]:
    """Return the shape of a block."""
    return tuple(stop - start for start, stop in bounds)


def bounds_text(bounds: Bounds) -> str:
    """Write bounds as an index.

    >>> bounds_text(((0, 2), (4, 8)))
    '[0:2, 4:8]'
    """
    return f"[{', '.join(f'{start}:{stop}' for start, stop in bounds)}]"


@dataclass(frozen=True)
class Slabs:
    """How an array is cut into slabs, so that a transfer never has more than one of them in memory.

    A slab consists of the same few rows along one dim of every block, arranged like the blocks.

    Attributes:
        local_shape: shape of every block.
        dim: the dim along which slabs are cut; None if the whole array is one slab.
        rows: the number of rows of each block in a slab.
        shape: shape of a slab.
    """

    local_shape: tuple[int, ...]
    dim: int | None
    rows: int
    shape: tuple[int, ...]

    @property
    def starts(self) -> Sequence[int]:
        """The first row of each slab in its block; the last slab may overlap the one before it."""
        if self.dim is None:
            return (0,)
        length = self.local_shape[self.dim]
        return tuple(min(start, length - self.rows) for start in range(0, length, self.rows))

    def in_array(self, block: Bounds, start: int) -> tuple[slice, ...]:
        """Return the slab's part of a block as an index into the array."""
        return tuple(
            slice(low + start, low + start + self.rows) if dim == self.dim else slice(low, high)
            for dim, (low, high) in enumerate(block)
        )

    def in_slab(self, block: Bounds) -> tuple[slice, ...]:
        """Return the slab's part of a block as an index into the slab."""
        if self.dim is None:
            return tuple(slice(*piece) for piece in block)
        lows = [low for low, _ in block]
        lows[self.dim] = lows[self.dim] // self.local_shape[self.dim] * self.rows
        sizes = [self.rows if dim == self.dim else size for dim, size in enumerate(self.local_shape)]
        return tuple(slice(low, low + size) for low, size in zip(lows, sizes, strict=True))

    def in_block(self, start: int) -> tuple[slice, ...]:
        """Return the slab's part of a block as an index into the block."""
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
