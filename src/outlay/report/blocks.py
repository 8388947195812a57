"""The blocks of one array: which slice of it each device holds."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlay.devices.info import MeshInfo
from outlay.layout.placement import Dims

Bounds = tuple[tuple[int, int], ...]
"""Start and stop of every piece of one dim, in order."""


@dataclass(frozen=True)
class Blocks:
    """An array cut into blocks, and the devices that hold each.

    Attributes:
        shape: shape of the whole array.
        bounds: for each dim, the (start, stop) of its pieces.
        holders: the ids of the devices that hold each block, in row-major order over the pieces.
    """

    shape: tuple[int, ...]
    bounds: tuple[Bounds, ...]
    holders: tuple[tuple[int, ...], ...]

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of pieces of each dim."""
        return tuple(len(pieces) for pieces in self.bounds)

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self.holders)

    @property
    def by_position(self) -> Any:
        """Device ids as nested tuples, one level a dim: `by_position[i][j]` are the holders of block (i, j)."""
        return _nest(self.holders, self.grid)

    def slices_of(self, device: int) -> tuple[tuple[int, int], ...]:
        """The (start, stop) in each dim of the block that a device holds.

        Raises:
            KeyError: the device holds nothing of the array.
        """
        for position, ids in enumerate(self.holders):
            if device in ids:
                index = np.unravel_index(position, self.grid)
                return tuple(pieces[int(i)] for pieces, i in zip(self.bounds, index, strict=True))
        raise KeyError(f"device {device} holds nothing of this array")

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "shape": list(self.shape),
            "bounds": [[list(piece) for piece in pieces] for pieces in self.bounds],
            "devices": [list(ids) for ids in self.holders],
        }


@functools.lru_cache(maxsize=4096)
def blocks_on_mesh(shape: tuple[int, ...], dims: Dims, mesh: MeshInfo) -> Blocks:
    """The blocks of an array whose dims are split over axes of a mesh.

    >>> mesh = MeshInfo.of(outlay.mesh(x=2, y=4))
    >>> blocks_on_mesh((4, 8), (("x",), ("y",)), mesh).by_position
    (((0,), (1,), (2,), (3,)), ((4,), (5,), (6,), (7,)))
    """
    sizes = mesh.axis_sizes
    coordinates = dict(zip(sizes, np.indices(tuple(sizes.values())), strict=True))
    grid = tuple(math.prod(sizes[axis] for axis in axes) for axes in dims)
    # An empty dim cannot be cut: all devices hold the same nothing.
    grid = tuple(pieces if size else 1 for pieces, size in zip(grid, shape, strict=True))
    block = np.zeros(tuple(sizes.values()), int)
    for axes, pieces in zip(dims, grid, strict=True):
        piece = np.zeros_like(block)
        for axis in axes if pieces > 1 else ():
            piece = piece * sizes[axis] + coordinates[axis]
        block = block * pieces + piece
    bounds = tuple(_even(size, pieces) for size, pieces in zip(shape, grid, strict=True))
    return Blocks(shape, bounds, _gather(block.ravel(), mesh.device_ids, math.prod(grid)))


def whole_block(shape: tuple[int, ...], device_ids: tuple[int, ...]) -> Blocks:
    """An array in one piece, which each of the devices holds."""
    return Blocks(shape, tuple(((0, size),) for size in shape), (device_ids,))


def blocks_of_map(shape: tuple[int, ...], slices: Mapping[int, tuple[slice, ...]]) -> Blocks:
    """The blocks of an array with any other sharding, from the index that each device id holds."""
    pieces = {
        device: tuple(piece.indices(size)[:2] for piece, size in zip(index, shape, strict=True))
        for device, index in slices.items()
    }
    bounds = tuple(tuple(sorted({piece[dim] for piece in pieces.values()})) for dim in range(len(shape)))
    grid = tuple(map(len, bounds))
    block = []
    for index in pieces.values():
        number = 0
        for dim, piece in enumerate(index):
            number = number * grid[dim] + bounds[dim].index(piece)
        block.append(number)
    return Blocks(shape, bounds, _gather(block, tuple(pieces), math.prod(grid)))


def _even(size: int, pieces: int) -> Bounds:
    length = size // pieces
    return tuple((i * length, (i + 1) * length) for i in range(pieces))


def _gather(block: Any, device_ids: tuple[int, ...], num_blocks: int) -> tuple[tuple[int, ...], ...]:
    holders: list[list[int]] = [[] for _ in range(num_blocks)]
    for number, device in zip(block, device_ids, strict=True):
        holders[number].append(device)
    return tuple(tuple(ids) for ids in holders)


def _nest(flat: tuple[Any, ...], grid: tuple[int, ...]) -> Any:
    if not grid:
        return flat[0]
    if len(grid) == 1:
        return flat
    inner = math.prod(grid[1:])
    return tuple(_nest(flat[i * inner : (i + 1) * inner], grid[1:]) for i in range(grid[0]))
