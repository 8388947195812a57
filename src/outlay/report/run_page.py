"""The page of a run of any kind: its results, pictures, and where every array lived."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from outlay.layout.plan import Plan
from outlay.render.html import html_of_page
from outlay.render.page import Block, Code, Column, Columns, Facts, Page, Row, Section, Table
from outlay.render.pictures import Frame, Image
from outlay.report.show import show


def png_image(title: str, path: Path, caption: str = "", *, is_wide: bool = False) -> Image:
    """Return a PNG file as an image inside the page, so that the page needs no other file.

    Args:
        title: what it shows.
        path: the file.
        caption: how to read it.
        is_wide: whether its text is too small for half a page.
    """
    return Image(title, base64.b64encode(path.read_bytes()).decode(), caption, is_wide)


def run_page(
    title: str,
    facts: Mapping[str, str],
    plan: Plan,
    *,
    beside: Image | None = None,
    table: Sequence[Mapping[str, str]] = (),
    numbers: Collection[str] = (),
    pictures: Sequence[Image] = (),
    sample: str = "",
) -> str:
    """Build the page as HTML.

    Args:
        title: the heading.
        facts: the result in words, by name.
        plan: where every array lived.
        beside: one picture beside the facts.
        table: a table beside the facts, its rows by the heads of their columns.
        numbers: heads of the columns that hold numbers.
        pictures: the pictures below, each with a heading.
        sample: text that the run shows.
    """
    first: list[Block] = [Facts({name.replace("_", " "): words for name, words in facts.items()})]
    if beside:
        first.append(beside)
    if table:
        columns = [Column(head, "number" if head in numbers else "") for head in table[0]]
        first.append(Table(columns, [Row(list(row.values())) for row in table]))
    shown = [Section(picture.title, [picture]) for picture in pictures]
    return html_of_page(
        Page(
            title,
            [
                Section("result", [Columns(first)]),
                *([Columns(shown)] if shown else []),
                *([Section("sample", [Code(sample)])] if sample else []),
                # A page of its own: its script and styles do not meet those of this one.
                Frame("where every array lived", show(plan).to_html()),
            ],
        )
    )
