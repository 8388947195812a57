"""The picture of an array's blocks: flat panels of rows and columns, whatever the rank.

Two dims are drawn: those of a matrix, or of a higher rank the last two that are split. The split dims before them
make one panel a slice.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from outlay.report.blocks import Blocks

# A longer row or column of blocks is laid out in lines of at most `_LINE` blocks.
_LONGEST_ROW = 32
_LINE = 16


@dataclass(frozen=True)
class Panel:
    """One slice of the array over its leading split dims.

    Attributes:
        title: the slice, such as `[0:4, :, :]`; empty when one panel shows the whole array.
        cells: the device ids of each block, by row and column.
    """

    title: str
    cells: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True)
class Picture:
    """The panels of one array with the labels that they share.

    Attributes:
        row_dim: the dim that runs down, or None where all of a panel is one row.
        column_dim: the dim that runs across, or None for an array of rank 0.
        rows: the slice of each row, such as `0:2`.
        columns: the slice of each column.
        height: length of the row dim, 1 without one.
        width: length of the column dim, 1 without one.
        panels: the slices over the other split dims.
        wrapped: whether one long row of blocks is laid out as lines; `rows` are then the slices of the lines.
    """

    row_dim: int | None
    column_dim: int | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    height: int
    width: int
    panels: tuple[Panel, ...]
    wrapped: bool = False


def draw(blocks: Blocks) -> Picture:
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
    return Picture(row_dim, column_dim, rows, columns, height, width, panels)


def _draw_wrapped(blocks: Blocks, dim: int) -> Picture:
    pieces = blocks.bounds[dim]
    length = _line_length(len(pieces))
    starts = range(0, len(pieces), length)
    rows = tuple(_label((pieces[start][0], pieces[start + length - 1][1])) for start in starts)
    cells = tuple(blocks.holders[start : start + length] for start in starts)
    return Picture(dim, None, rows, ("",) * length, len(starts), length, (Panel("", cells),), wrapped=True)


def _line_length(num_blocks: int) -> int:
    return max(length for length in range(1, _LINE + 1) if num_blocks % length == 0)


def _drawn_dims(blocks: Blocks) -> tuple[int | None, int | None]:
    rank = len(blocks.shape)
    if rank < 2:
        return None, 0 if rank else None
    # Split dims first, later ones first: a stable sort keeps whole dims as a fallback.
    ranked = sorted(range(rank), key=lambda dim: (blocks.grid[dim] == 1, -dim))
    row_dim, column_dim = sorted(ranked[:2])
    return row_dim, column_dim


def _labels(blocks: Blocks, dim: int | None) -> tuple[str, ...]:
    if dim is None:
        return ("",)
    return tuple(_label(piece) for piece in blocks.bounds[dim])


def _label(piece: tuple[int, int]) -> str:
    return f"{piece[0]}:{piece[1]}"


def _panel(blocks: Blocks, row_dim: int | None, column_dim: int | None, fixed: dict[int, int]) -> Panel:
    def holders(row: int, column: int) -> tuple[int, ...]:
        index = {**fixed, row_dim: row, column_dim: column}
        number = 0
        for dim, pieces in enumerate(blocks.grid):
            number = number * pieces + index.get(dim, 0)
        return blocks.holders[number]

    num_rows = 1 if row_dim is None else blocks.grid[row_dim]
    num_columns = 1 if column_dim is None else blocks.grid[column_dim]
    cells = tuple(tuple(holders(i, j) for j in range(num_columns)) for i in range(num_rows))
    return Panel(_title(blocks, fixed), cells)


def _title(blocks: Blocks, fixed: dict[int, int]) -> str:
    if not fixed:
        return ""
    parts = [_label(blocks.bounds[dim][fixed[dim]]) if dim in fixed else ":" for dim in range(len(blocks.shape))]
    return f"[{', '.join(parts)}]"
