"""What a report is made of: a title and blocks, as plain values that say nothing of how they are drawn.

One function a report builds them from its facts; `outlay.render.text` and `outlay.render.html` draw them. Titles and
heads of columns are written in lower case: the page begins each with a capital letter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Style = Literal["", "strong", "dim", "good", "warning", "bad"]
Medium = Literal["both", "text", "html"]

NUM_COLOURS = 6
"""Colours that the page has for things that stand beside each other."""


def colour_of(number: int) -> str:
    """The page's colour for the thing with this number; `work` is its grey.

    >>> colour_of(0), colour_of(7)
    ('s0', 's1')
    """
    return f"s{number % NUM_COLOURS}"


@dataclass(frozen=True, kw_only=True)
class Block:
    """A piece of a report.

    Attributes:
        medium: where it is drawn: `both`, or in one of `text` and `html` alone.
    """

    medium: Medium = "both"


@dataclass(frozen=True)
class Line(Block):
    """A sentence in a line of its own."""

    text: str
    style: Style = ""


@dataclass(frozen=True)
class Notes(Block):
    """Sentences below the report's subject: on the page in a box where they warn, in a small list where not.

    Attributes:
        texts: the sentences.
        label: what each begins with in text; a dash if empty.
        is_warning: whether the reader must not overlook them.
    """

    texts: Sequence[str]
    label: str = "note"
    is_warning: bool = False


@dataclass(frozen=True)
class Stat:
    """One number with its name, and a remark below it."""

    name: str
    value: str
    remark: str


@dataclass(frozen=True)
class Stats(Block):
    """The numbers that a reader wants first, side by side on the page; text has them in its lines."""

    stats: Sequence[Stat]
    label: str = "Totals"


@dataclass(frozen=True)
class Section(Block):
    """Blocks below a title: a card of the page.

    Attributes:
        title: the title.
        blocks: what it holds.
        remark: what follows the title, in small letters on the page.
    """

    title: str
    blocks: Sequence[Block]
    remark: str = ""


@dataclass(frozen=True)
class Columns(Block):
    """Blocks beside each other where the page has room for it, below one another in text.

    Attributes:
        blocks: the blocks.
        proportion: `one` gives the first more room, `broad` none beside another.
    """

    blocks: Sequence[Block]
    proportion: Literal["", "one", "broad"] = ""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: its head.
        kind: `number` is right-aligned; `code` is in the letters of source; a `path` is, and may break at its dots;
            `words` may break anywhere.
        medium: where it is drawn.
        least_width: columns that a terminal needs for the table to have it.
    """

    name: str
    kind: Literal["", "number", "code", "path", "words"] = ""
    medium: Medium = "both"
    least_width: int = 0


@dataclass(frozen=True)
class Segment:
    """A stretch of a bar.

    Attributes:
        name: what it is.
        share: its length, as a share of the whole bar.
        colour: its colour, by `colour_of`.
        value: how much it is, in words.
        remark: what is to be said of it, in small letters.
    """

    name: str
    share: float
    colour: str = "s0"
    value: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell with more than a text.

    Attributes:
        text: the text.
        share: the length of the bar behind it, as a share of the longest; None without a bar.
        colour: of the dot before it; empty without a dot.
        hint: what the page shows where the pointer rests on it.
        segments: a small bar of parts, in place of the text on the page.
    """

    text: str
    share: float | None = None
    colour: str = ""
    hint: str = ""
    segments: Sequence[Segment] = ()


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        cells: one for each column.
        style: `good`, `warning` or `bad` where the row is to be seen at once; `strong` for the one that was chosen.
        hint: what the page shows where the pointer rests on it.
        members: the rows that this one stands for, which the page can unfold.
    """

    cells: Sequence[Cell | str]
    style: Style = ""
    hint: str = ""
    members: Sequence[Sequence[Cell | str]] = ()


@dataclass(frozen=True)
class Table(Block):
    """Rows below heads.

    Attributes:
        columns: the columns.
        rows: the rows.
        limit: rows that are shown; the page can unfold the others. None for all.
        rest: what the rows beyond the limit come to, in a sentence; empty if their number says enough.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    limit: int | None = None
    rest: str = ""


@dataclass(frozen=True)
class Advice:
    """Something to change.

    Attributes:
        kind: its kind, in a word or two.
        text: what, where and how much.
        fix: the edit to make.
        is_severe: whether nothing works until it is changed.
        in_short: the kind, the place and the cost in a few words, for a list of those that matter little.
        members: the texts that this one stands for, which the page can unfold.
    """

    kind: str
    text: str
    fix: str
    is_severe: bool = False
    in_short: str = ""
    members: Sequence[str] = ()


@dataclass(frozen=True)
class Advices(Block):
    """What to change, the most important first.

    Attributes:
        advices: those that matter.
        minor: those that matter little: named in text, folded on the page.
        minor_title: what they have in common.
    """

    advices: Sequence[Advice]
    minor: Sequence[Advice] = ()
    minor_title: str = ""


@dataclass(frozen=True)
class Details(Block):
    """Lines below a summary, folded on the page.

    Attributes:
        summary: the summary.
        lines: the lines.
        limit: lines that text shows.
        what: what the lines are, for text to say how many it leaves out.
    """

    summary: str
    lines: Sequence[str]
    limit: int = 12
    what: str = "lines"


@dataclass(frozen=True)
class Code(Block):
    """Text that keeps its lines and its spaces, such as commands and files."""

    text: str


@dataclass(frozen=True)
class Facts(Block):
    """Names with words beside them."""

    facts: dict[str, str]


@dataclass(frozen=True)
class Template(Block):
    """A block of one report alone, by a template of its own; the page alone can draw it.

    Attributes:
        name: the file of the template.
        view: what the template fills in.
    """

    name: str
    view: dict[str, Any]


@dataclass(frozen=True)
class Rich(Block):
    """A block of one report alone as text: rich renderables for a terminal so many columns wide."""

    draw: Callable[[int], Sequence[Any]]


@dataclass(frozen=True)
class Chip:
    """A word or two below the title of the page."""

    text: str
    style: Style = ""
    hint: str = ""


@dataclass(frozen=True)
class Page:
    """A whole report.

    Attributes:
        title: the title of the page.
        blocks: what it holds.
        headline: the first line of text; the title if empty.
        headline_style: how that is drawn.
        chips: what the page says below its title.
        footer: what the page ends with, after who made it.
    """

    title: str
    blocks: Sequence[Block]
    headline: str = ""
    headline_style: Style = "strong"
    chips: Sequence[Chip] = field(default=())
    footer: str = ""
