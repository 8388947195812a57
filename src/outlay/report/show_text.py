"""Where arrays live as text: the table of leaves, or the picture of one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from outlay.core.quantities import format_bytes
from outlay.core.table import folded, table
from outlay.devices.device_identity import format_ids
from outlay.report.array_blocks import Panel, Picture, draw
from outlay.report.leaf import LeafFacts
from outlay.report.show_facts import Facts

# A narrower terminal would break the reasons into single words, and rules into several lines.
_WIDTH_WITH_REASONS = 140


def array_text(leaf: LeafFacts, width: int) -> Iterator[Any]:
    """Yield one array in words, and the picture of its blocks."""
    name = f"{leaf.path}: " if leaf.path else ""
    place = f"{leaf.place}: " if leaf.on_mesh else ""
    yield Text(f"{name}{leaf.dtype} {leaf.shape}, {place}{leaf.in_words}")
    if leaf.blocks is None:
        yield Text(f"{format_bytes(leaf.bytes_total)}; {leaf.reason}")
        return
    each = f"{leaf.local_shape}, {format_bytes(leaf.bytes_per_device)}"
    yield Text(f"a device holds {each} of {format_bytes(leaf.bytes_total)}")
    if leaf.rule:
        yield Text(f"rule: {leaf.rule}")
    if leaf.reason:
        yield Text(f"reason: {leaf.reason}")
    yield Text()
    yield from picture_text(draw(leaf.blocks), width)


def leaves_text(facts: Facts, width: int) -> Iterator[Any]:
    """Yield the table of leaves, one row each, similar ones folded; with reasons if there is room."""
    yield Text()
    narrow = width < _WIDTH_WITH_REASONS and any(leaf.reason for leaf in facts.leaves)
    columns = {
        "path": [leaf.path for leaf in facts.leaves],
        "shape": [str(leaf.shape) for leaf in facts.leaves],
        "local": [str(leaf.local_shape) for leaf in facts.leaves],
        "dtype": [leaf.dtype for leaf in facts.leaves],
        "spec": [leaf.place for leaf in facts.leaves],
        "a device": [format_bytes(leaf.bytes_per_device) if leaf.device_ids else "-" for leaf in facts.leaves],
        "copies": [str(leaf.num_copies) if leaf.device_ids else "-" for leaf in facts.leaves],
        "rule": [_numbers(leaf) if narrow else leaf.rule for leaf in facts.leaves],
        "reason": [leaf.reason for leaf in facts.leaves],
    }
    optional = [name for name in ("rule", "reason") if not any(columns[name])]
    shown = [name for name in columns if name not in optional and not (narrow and name == "reason")]
    rows = [list(row) for row in zip(*(columns[name] for name in shown), strict=True)]
    names = [shown.index(name) for name in ("path", "reason") if name in shown]
    rows, left_out = folded(rows, names=names, all_at="to_dict(), or the page, to_html()")
    yield table(shown, rows, right=("a device", "copies"))
    if left_out:
        yield Text(f"({left_out})", style="dim")
    if narrow:
        yield from (Text(f"rule {rule}", style="dim") for rule in _rules(facts))
        yield Text(f"(the reasons are left out: they need {_WIDTH_WITH_REASONS} columns)", style="dim")


def _numbers(leaf: LeafFacts) -> str:
    """Return the deciding rules, by number only."""
    return ", ".join(rule.partition(".")[0] for rule in leaf.rules)


def _rules(facts: Facts) -> list[str]:
    """Return every rule that decided something, in the order of the layout."""
    return sorted({rule for leaf in facts.leaves for rule in leaf.rules}, key=lambda rule: int(rule.partition(".")[0]))


# Lines between rows make small pictures look like blocks; many rows are easier to read without.
_MAX_RULED_ROWS = 8
_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_cyan", "bright_magenta")


def picture_text(picture: Picture, width: int) -> Iterator[Text]:
    """Yield the lines of a picture. Columns that do not fit the width continue below, and are never cut."""
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
