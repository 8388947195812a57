"""The blocks of one array: which slice each device holds, and how they are drawn in flat panels.

For any rank, two dims are drawn: those of a matrix, or else the last two that are split. Other split dims give one
panel per slice.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlay.core.one_line import OneLine
from outlay.devices.device_names import format_ids
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import Dims
from outlay.render import pictures

Bounds = tuple[tuple[int, int], ...]
"""Start and stop of every piece of one dim, in order."""


@dataclass(frozen=True)
class Blocks(OneLine):
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
        """The number of blocks."""
        return len(self.holders)

    @property
    def by_position(self) -> Any:
        """Device ids as nested tuples, one level per dim: `by_position[i][j]` are the holders of block (i, j)."""
        return _nest(self.holders, self.grid)

    def slices_of(self, device: int) -> tuple[tuple[int, int], ...]:
        """Return the (start, stop) in each dim of the block that a device holds.

        Raises:
            KeyError: the device holds nothing of the array.
        """
        for position, ids in enumerate(self.holders):
            if device in ids:
                index = np.unravel_index(position, self.grid)
                return tuple(pieces[int(i)] for pieces, i in zip(self.bounds, index, strict=True))
        raise KeyError(f"device {device} holds nothing of this array")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "shape": list(self.shape),
            "bounds": [[list(piece) for piece in pieces] for pieces in self.bounds],
            "devices": [list(ids) for ids in self.holders],
        }


@functools.lru_cache(maxsize=4096)
def blocks_on_mesh(shape: tuple[int, ...], dims: Dims, mesh: MeshInfo) -> Blocks:
    """Return the blocks of an array whose dims are split over axes of a mesh.

    >>> mesh = MeshInfo.of(outlay.mesh(x=2, y=4))
    >>> blocks_on_mesh((4, 8), (("x",), ("y",)), mesh).by_position
    (((0,), (1,), (2,), (3,)), ((4,), (5,), (6,), (7,)))
    """
    sizes = mesh.axis_sizes
    coordinates = dict(zip(sizes, np.indices(tuple(sizes.values())), strict=True))
    grid = tuple(math.prod(sizes[axis] for axis in axes) for axes in dims)
    # An empty dim cannot be cut, so all devices hold the same, which is nothing.
    grid = tuple(pieces if size else 1 for pieces, size in zip(grid, shape, strict=True))
    block = np.zeros(tuple(sizes.values()), int)
    for axes, pieces in zip(dims, grid, strict=True):
        piece = np.zeros_like(block)
        for axis in axes if pieces > 1 else ():
            piece = piece * sizes[axis] + coordinates[axis]
        block = block * pieces + piece
    bounds = tuple(_even(size, pieces) for size, pieces in zip(shape, grid, strict=True))
    return Blocks(shape, bounds, _gather(block.ravel(), mesh.device_ids, math.prod(grid)))


def planned_blocks(leaf: LeafPlan, mesh: MeshInfo) -> Blocks:
    """Return the blocks of a leaf of a plan."""
    if leaf.device_ids == mesh.device_ids:
        return blocks_on_mesh(leaf.shape, leaf.dims, mesh)
    if leaf.local_shape == leaf.shape:
        return Blocks(leaf.shape, tuple(((0, size),) for size in leaf.shape), (leaf.device_ids,))
    # What a group of devices shares is split by rows, along its first dim; no spec says so.
    rows, others = leaf.local_shape[0], (slice(None),) * (len(leaf.shape) - 1)
    slices = {id: (slice(i * rows, (i + 1) * rows), *others) for i, id in enumerate(leaf.device_ids)}
    return blocks_of_map(leaf.shape, slices)


def blocks_of_map(shape: tuple[int, ...], slices: Mapping[int, tuple[slice, ...]]) -> Blocks:
    """Return the blocks of an array with any sharding, from the index that each device id holds."""
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


# A longer row or column of blocks is wrapped into lines of at most `_LINE` blocks.
_LONGEST_ROW = 32
_LINE = 16


def draw(blocks: Blocks) -> pictures.BlockGrid:
    """Choose the dims to draw and lay the blocks out."""
    split = [dim for dim, pieces in enumerate(blocks.grid) if pieces > 1]
    if len(split) == 1 and blocks.num_blocks > _LONGEST_ROW and _line_length(blocks.num_blocks) > 1:
        return _draw_wrapped(blocks, split[0])
    row_dim, column_dim = _drawn_dims(blocks)
    leading = [dim for dim in split if dim not in (row_dim, column_dim)]
    choices = itertools.product(*(range(blocks.grid[dim]) for dim in leading))
    panels = tuple(_panel(blocks, row_dim, column_dim, dict(zip(leading, c, strict=True))) for c in choices)
    rows, columns = _labels(blocks, row_dim), _labels(blocks, column_dim)
    height = 1 if row_dim is None else blocks.shape[row_dim]
    width = 1 if column_dim is None else blocks.shape[column_dim]
    return pictures.BlockGrid(row_dim, column_dim, rows, columns, height, width, panels, format_ids)


def _draw_wrapped(blocks: Blocks, dim: int) -> pictures.BlockGrid:
    pieces = blocks.bounds[dim]
    length = _line_length(len(pieces))
    starts = range(0, len(pieces), length)
    rows = tuple(_label((pieces[start][0], pieces[start + length - 1][1])) for start in starts)
    cells = tuple(blocks.holders[start : start + length] for start in starts)
    panel = pictures.Panel("", cells)
    return pictures.BlockGrid(dim, None, rows, ("",) * length, len(starts), length, (panel,), format_ids)


def _line_length(num_blocks: int) -> int:
    return max(length for length in range(1, _LINE + 1) if num_blocks % length == 0)


def _drawn_dims(blocks: Blocks) -> tuple[int | None, int | None]:
    rank = len(blocks.shape)
    if rank < 2:
        return None, 0 if rank else None
    # Split dims first, later ones first; the sort is stable, so unsplit dims remain as a fallback.
    ranked = sorted(range(rank), key=lambda dim: (blocks.grid[dim] == 1, -dim))
    row_dim, column_dim = sorted(ranked[:2])
    return row_dim, column_dim


def _labels(blocks: Blocks, dim: int | None) -> tuple[str, ...]:
    if dim is None:
        return ("",)
    return tuple(_label(piece) for piece in blocks.bounds[dim])


def _label(piece: tuple[int, int]) -> str:
    return f"{piece[0]}:{piece[1]}"


def _panel(blocks: Blocks, row_dim: int | None, column_dim: int | None, fixed: dict[int, int]) -> pictures.Panel:
    def holders(row: int, column: int) -> tuple[int, ...]:
        index = {**fixed, row_dim: row, column_dim: column}
        number = 0
        for dim, pieces in enumerate(blocks.grid):
            number = number * pieces + index.get(dim, 0)
        return blocks.holders[number]

    num_rows = 1 if row_dim is None else blocks.grid[row_dim]
    num_columns = 1 if column_dim is None else blocks.grid[column_dim]
    cells = tuple(tuple(holders(i, j) for j in range(num_columns)) for i in range(num_rows))
    return pictures.Panel(_title(blocks, fixed), cells)


def _title(blocks: Blocks, fixed: dict[int, int]) -> str:
    if not fixed:
        return ""
    parts = [_label(blocks.bounds[dim][fixed[dim]]) if dim in fixed else ":" for dim in range(len(blocks.shape))]
    return f"[{', '.join(parts)}]"
