"""The block picture of one array in characters: a frame per panel, the ids of the holders in every block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rich.text import Text

from outlay.report.device_ids import format_ids
from outlay.report.picture import Panel, Picture

# Lines between rows make small pictures look like blocks; many rows read better without.
_MAX_RULED_ROWS = 8
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")


def picture_text(picture: Picture, width: int) -> Iterator[Text]:
    """The lines of a picture. Columns that do not fit the width go on below, never cut."""
    row_width = max(len(label) for label in picture.rows)
    for panel in picture.panels:
        if panel.title:
            yield Text(panel.title, style="bold")
        cells = [[format_ids(ids) for ids in row] for row in panel.cells]
        cell_width = max(len(text) for text in itertools.chain(*cells, picture.columns))
        fitting = max(1, (width - row_width - 2) // (cell_width + 3))
        for start in range(0, len(picture.columns), fitting):
            yield from _frame(picture, panel, cells, slice(start, start + fitting), row_width, cell_width)


def _frame(
    picture: Picture,
    panel: Panel,
    cells: Sequence[Sequence[str]],
    shown: slice,
    row_width: int,
    cell_width: int,
) -> Iterator[Text]:
    labels = picture.columns[shown]
    indent = " " * row_width + " "
    if any(labels):
        yield Text(indent + " " + " ".join(label.center(cell_width + 2) for label in labels), style="dim")
    edge = ("─" * (cell_width + 2),) * len(labels)
    yield Text(indent + "┌" + "┬".join(edge) + "┐")
    for number, (label, row, ids) in enumerate(zip(picture.rows, cells, panel.cells, strict=True)):
        if number and len(picture.rows) <= _MAX_RULED_ROWS:
            yield Text(indent + "├" + "┼".join(edge) + "┤")
        line = Text.assemble((label.rjust(row_width), "dim"), " │")
        for text, holders in zip(row[shown], ids[shown], strict=True):
            line.append(f" {text.center(cell_width)} ", style=_COLOURS[holders[0] % len(_COLOURS)])
            line.append("│")
        yield line
    yield Text(indent + "└" + "┴".join(edge) + "┘")
