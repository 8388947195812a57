"""Draw a report as text for terminals and files: each kind of block as rich renderables."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.padding import Padding
from rich.text import Text

from outlay.core.terminal_text import Lines, folded, has_more_lines, table
from outlay.render.page import (
    Advices,
    Block,
    Cell,
    Code,
    Columns,
    Deferred,
    Details,
    Facts,
    Line,
    Notes,
    Page,
    Section,
    SortedTable,
    Style,
    Table,
)
from outlay.render.pictures import Areas, Bars, BlockGrid, HeatMap, Stack

_STYLES: dict[Style, str] = {
    "": "",
    "strong": "bold",
    "dim": "dim",
    "good": "bold green",
    "warning": "yellow",
    "bad": "bold red",
}

_BAR = 20
"""Characters of the longest bar of a heat map, or of areas."""

_STRETCHES = 10
"""Stretches that areas are told in, beside the one that is marked."""

# Lines between rows make small pictures look like blocks; many rows are easier to read without.
_MAX_RULED_ROWS = 8
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")
"""The colours of devices, by id."""


def text_of_page(page: Page, width: int) -> Iterator[Any]:
    """Yield the report as rich renderables, for a console of that many columns."""
    yield Text(page.headline or page.title, style=_STYLES[page.headline_style])
    yield from _blocks(page.blocks, width)


def is_longer(page: Page, num_lines: int, width: int) -> bool:
    """Return whether the text of a page has more lines; a deferred block is made only if the others do not tell."""
    others = [block for block in page.blocks if not isinstance(block, Deferred)]
    if len(others) < len(page.blocks) and is_longer(dataclasses.replace(page, blocks=others), num_lines, width):
        return True
    return has_more_lines(Lines(functools.partial(text_of_page, page)), num_lines, width=width)


def _blocks(blocks: Any, width: int) -> Iterator[Any]:
    for block in blocks:
        if block.medium != "html" and width in block.widths and type(block) in _DRAW:
            yield from _DRAW[type(block)](block, width)


def _line(block: Line, width: int) -> Iterator[Any]:
    yield Text(block.text, style=_STYLES[block.style])


def _notes(block: Notes, width: int) -> Iterator[Any]:
    style = "yellow" if block.is_warning else "dim"
    begin = f"{block.label}: " if block.label else "- "
    yield from (Text(begin + text, style=style) for text in block.texts)


def _section(block: Section, width: int) -> Iterator[Any]:
    yield Text()
    yield Text(f"{block.title}: {block.remark}" if block.remark else block.title, style="bold")
    yield from _blocks(block.blocks, width)


def _deferred(block: Deferred, width: int) -> Iterator[Any]:
    yield from _blocks(block.blocks(), width)


def _columns(block: Columns, width: int) -> Iterator[Any]:
    yield from _blocks(block.blocks, width)


def _table(block: Table, width: int) -> Iterator[Any]:
    drawn = [
        (number, column)
        for number, column in enumerate(block.columns)
        if column.medium != "html" and width in column.widths
    ]
    rows = [[_text(row.cells[number]) for number, _ in drawn] for row in block.rows[: block.limit]]
    num_left = len(block.rows) - len(rows)
    rest = (block.rest or f"and {num_left:,} more") if num_left else ""
    if block.all_at:
        # A number in a name is a layer's; in a shape it is not.
        names = [at for at, (_, column) in enumerate(drawn) if column.kind in ("path", "words")]
        rows, left_out = folded(rows, names=names, all_at=block.all_at)
        rest = f"({left_out})" if left_out else rest
    heads = [column.name for _, column in drawn]
    yield table(heads, rows, right=[column.name for _, column in drawn if column.kind == "number"])
    if rest:
        yield Text(rest, style="dim")


def _text(cell: Cell | str) -> str:
    return cell if isinstance(cell, str) else cell.text


def _bars(block: Bars, width: int) -> Iterator[Any]:
    # A single bar compares nothing.
    if len(block.bars) < 2:
        return
    shown = ", ".join(f"{bar.name} {bar.value}" for bar in block.bars[: block.limit])
    num_left = len(block.bars) - block.limit
    yield Text((f"{block.title}: " if block.title else "") + shown + (f", {num_left} more" if num_left > 0 else ""))


def _stack(block: Stack, width: int) -> Iterator[Any]:
    parts = [*block.segments, *([block.mark] if block.mark else [])]
    yield table(("", " ", ""), [(part.name, part.value, part.remark) for part in parts], right=(" ",))


def _areas(block: Areas, width: int) -> Iterator[Any]:
    """Draw some stretches, the largest of each part, and the one that is marked."""
    totals, (marked, what) = [sum(sizes) for sizes in block.sizes], block.mark
    num = min(_STRETCHES, len(totals))
    starts = [part * len(totals) // num for part in range(num + 1)]
    largest = [max(range(*ends), key=totals.__getitem__) for ends in itertools.pairwise(starts)]
    rows = []
    for at in sorted({*largest, marked}):
        sizes = sorted(zip(block.sizes[at], block.layers, strict=True), key=lambda pair: -pair[0])
        most = ", ".join(f"{layer.name} {block.format_y(size)}" for size, layer in sizes[:2] if size)
        bar = "█" * round(_BAR * totals[at] / max(totals)) if max(totals) else ""
        where = f"{at / len(totals):.0%}" + (f" {what}" if at == marked else "")
        rows.append((where, block.format_y(totals[at]), bar, most))
    yield table((block.x_title, block.y_title, "", "most of it"), rows, right=(block.y_title,))


def _heat_map(block: HeatMap, width: int) -> Iterator[Any]:
    groups = [block.group_title] if block.group_title else []
    rows = [
        [
            *([row.group] if groups else []),
            row.name,
            *(text for text, _ in row.cells),
            row.total,
            "█" * int(row.share * _BAR),
        ]
        for row in block.rows
    ]
    numbers = (*block.columns, "in all")
    yield table([*groups, block.row_title, *numbers, ""], rows, right=numbers)


def _advices(block: Advices, width: int) -> Iterator[Any]:
    for number, advice in enumerate(block.advices, 1):
        yield Padding(Text(f"{number}. {advice.kind}: {advice.text}"), (0, 0, 0, 1))
        yield Padding(Text(f"fix: {advice.fix}", style="green"), (0, 0, 0, 4))
    if block.minor:
        shown = ", ".join(advice.in_short for advice in block.minor)
        yield Padding(Text(f"{block.minor_title}: {shown}", style="dim"), (0, 0, 0, 1))


def _details(block: Details, width: int) -> Iterator[Any]:
    yield Text()
    yield Text(f"{block.summary}:" if block.lines else block.summary)
    yield from (Text(f"  {line}") for line in block.lines[: block.limit])
    num_left = len(block.lines) - block.limit
    if num_left > 0:
        yield Text(f"  and {num_left} more {block.what}")


def _code(block: Code, width: int) -> Iterator[Any]:
    yield Padding(Text(block.text), (0, 0, 0, 2))


def _facts(block: Facts, width: int) -> Iterator[Any]:
    yield table(("", ""), list(block.facts.items()))


def _block_grid(block: BlockGrid, width: int) -> Iterator[Any]:
    """Draw the blocks of an array. Columns that do not fit the width continue below, and are never cut."""
    indent = max(map(len, block.rows)) + 1
    for panel in block.panels:
        if panel.title:
            yield Text(panel.title, style="bold")
        names = [[block.format_ids(ids) for ids in row] for row in panel.cells]
        cell_width = max(map(len, itertools.chain(*names, block.columns)))
        num_fitting = max(1, (width - indent - 1) // (cell_width + 3))
        for start in range(0, len(block.columns), num_fitting):
            shown = slice(start, start + num_fitting)
            cells = [
                [(text, _COLOURS[ids[0] % len(_COLOURS)]) for text, ids in zip(row[shown], held[shown], strict=True)]
                for row, held in zip(names, panel.cells, strict=True)
            ]
            yield from _grid(block.rows, block.columns[shown], cells, indent, cell_width)


def _grid(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[tuple[str, str]]], indent: int, width: int
) -> Iterator[Text]:
    """Draw cells of text and colour with the names of their rows and columns."""

    def edge(left: str, between: str, right: str) -> Text:
        return Text(" " * indent + left + between.join(["─" * (width + 2)] * len(columns)) + right)

    if any(columns):
        yield Text(" " * indent + " " + " ".join(column.center(width + 2) for column in columns), style="dim")
    yield edge("┌", "┬", "┐")
    for number, (name, row) in enumerate(zip(rows, cells, strict=True)):
        if number and len(rows) <= _MAX_RULED_ROWS:
            yield edge("├", "┼", "┤")
        texts = itertools.chain.from_iterable(((f" {text.center(width)} ", colour), "│") for text, colour in row)
        yield Text.assemble((name.rjust(indent - 1), "dim"), " │", *texts)
    yield edge("└", "┴", "┘")


_DRAW: dict[type[Block], Callable[[Any, int], Iterator[Any]]] = {
    Line: _line,
    Notes: _notes,
    Section: _section,
    Deferred: _deferred,
    Columns: _columns,
    Table: _table,
    SortedTable: _table,
    Bars: _bars,
    Stack: _stack,
    Areas: _areas,
    Advices: _advices,
    Details: _details,
    Code: _code,
    Facts: _facts,
    HeatMap: _heat_map,
    BlockGrid: _block_grid,
}
"""How each kind of block is drawn; kinds that are not listed, such as pictures, have no text."""
