"""What a report consists of: a title and blocks, as plain values that do not say how they are drawn.

Each report has one function that builds them from its facts; `outlay.render.text` and `outlay.render.html` draw them.
Titles and column heads are written in lower case: the page capitalizes them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from outlay.core.one_line import OneLine

T = TypeVar("T")
Style = Literal["", "strong", "dim", "good", "warning", "bad"]
Medium = Literal["both", "text", "html"]

ANY_WIDTH = range(sys.maxsize)
"""The widths of all terminals, in columns."""

NUM_COLOURS = 6
"""The number of colours for things that are shown beside each other."""


def colour_of(number: int) -> str:
    """Return the page's colour for the thing with this number; `work` is its grey.

    >>> colour_of(0), colour_of(7)
    ('s0', 's1')
    """
    return f"s{number % NUM_COLOURS}"


@dataclass(frozen=True, kw_only=True)
class Block(OneLine):
    """A part of a report.

    Attributes:
        medium: where it is drawn: `both`, or only `text` or `html`.
        widths: the widths of the terminals on which it is drawn.
    """

    medium: Medium = "both"
    widths: range = ANY_WIDTH


@dataclass(frozen=True)
class Line(Block):
    """A sentence on a line of its own."""

    text: str
    style: Style = ""


@dataclass(frozen=True)
class Notes(Block):
    """Sentences about the report's subject: on the page in a box if they warn, else in a small list.

    Attributes:
        texts: the sentences.
        label: what each begins with in text; a dash if empty.
        is_warning: whether the reader must not miss them.
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
    """The numbers that a reader wants first, side by side on the page; text has them in its sentences."""

    stats: Sequence[Stat]
    label: str = "Totals"


@dataclass(frozen=True)
class Section(Block):
    """Blocks below a title: a card on the page.

    Attributes:
        title: the title.
        blocks: its content.
        remark: added to the title, in small letters on the page.
    """

    title: str
    blocks: Sequence[Block]
    remark: str = ""


@dataclass(frozen=True)
class Deferred(Block):
    """Blocks that are made when they are drawn: what makes them is not on the way of a report that ends before them.

    Attributes:
        blocks: makes them.
    """

    blocks: Callable[[], Iterable[Block]]


@dataclass(frozen=True)
class Columns(Block):
    """Blocks side by side if the page is wide enough, one below the other in text.

    Attributes:
        blocks: the blocks.
        proportion: `one` gives the first more room, `broad` puts them one below the other.
    """

    blocks: Sequence[Block]
    proportion: Literal["", "one", "broad"] = ""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: its head.
        kind: `number` is right-aligned; `code` is monospaced; a `path` is too, and may break at its dots; `words` may
            break anywhere.
        medium: where it is drawn.
        widths: the widths of the terminals on which the table has this column.
        is_key: whether the page shows it right after the first column, so that a narrow one does not hide it.
        is_name: whether its head is the name of something, which the page writes as it is.
    """

    name: str
    kind: Literal["", "number", "code", "path", "words"] = ""
    medium: Medium = "both"
    widths: range = ANY_WIDTH
    is_key: bool = False
    is_name: bool = False


@dataclass(frozen=True)
class Segment:
    """A section of a bar.

    Attributes:
        name: what it is.
        share: its length, as a share of the whole bar.
        colour: its colour, by `colour_of`.
        value: its amount, in words.
        remark: a remark, in small letters.
    """

    name: str
    share: float
    colour: str = "s0"
    value: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell with more than text.

    Attributes:
        text: the text.
        share: the length of the bar behind it, as a share of the longest; None without a bar.
        colour: the colour of the dot before it; empty without a dot.
        hint: shown by the page when the pointer is over it.
        segments: a small bar of parts, which replaces the text on the page.
        link: the page that the text leads to.
        order: the number by which a `SortedTable` sorts it; None for its text.
    """

    text: str
    share: float | None = None
    colour: str = ""
    hint: str = ""
    segments: Sequence[Segment] = ()
    link: str = ""
    order: float | None = None


def with_bars(things: Iterable[T], size: Callable[[T], float], words: Callable[[Any], str]) -> Callable[[T], Cell]:
    """Return a function that makes a cell with a bar: its text is the size in words, its length a share of the largest.

    >>> cell = with_bars([2, 8], lambda thing: thing, str)
    >>> cell(2)
    Cell(text='2', share=0.25, colour='', hint='', segments=(), link='', order=None)
    """
    most = max(map(size, things), default=0) or 1  # if nothing has a size, all bars are empty
    return lambda thing: Cell(words(size(thing)), share=size(thing) / most)


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        cells: one for each column.
        style: `good`, `warning` or `bad` for a row that must catch the eye; `strong` for the chosen one.
        hint: shown by the page when the pointer is over it.
        members: the rows that this one stands for, which the page can unfold.
    """

    cells: Sequence[Cell | str]
    style: Style = ""
    hint: str = ""
    members: Sequence[Sequence[Cell | str]] = ()


@dataclass(frozen=True)
class Table(Block):
    """Rows below column heads.

    Attributes:
        columns: the columns.
        rows: the rows.
        limit: the number of rows shown; the page can unfold the others. None shows all.
        rest: a sentence about the rows beyond the limit; empty if their number is enough.
        all_at: if rows that differ only in the numbers of paths and words are folded in text: where all can be read.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    limit: int | None = None
    rest: str = ""
    all_at: str = ""

    @property
    def on_page(self) -> list[tuple[int, Column]]:
        """The columns in the order of the page, each with its number among all."""
        drawn = [(number, column) for number, column in enumerate(self.columns) if column.medium != "text"]
        return [*drawn[:1], *sorted(drawn[1:], key=lambda pair: not pair[1].is_key)]

    @classmethod
    def of(
        cls,
        things: Iterable[T],
        columns: Sequence[tuple[Column, Callable[[T], Cell | str]]],
        *,
        style: Callable[[T], Style] = lambda thing: "",
        hint: Callable[[T], str] = lambda thing: "",
        **others: Any,
    ) -> Table:
        """Return a table with a row for each thing.

        Args:
            things: the things.
            columns: the columns, each with a function that makes the cell of a thing.
            style: the style of a thing's row.
            hint: the hint of a thing's row.
            **others: further attributes of the table.
        """
        rows = [Row([cell(thing) for _, cell in columns], style(thing), hint(thing)) for thing in things]
        return cls([column for column, _ in columns], rows, **others)


@dataclass(frozen=True)
class SortedTable(Table):
    """A table that the page sorts by the column whose head is clicked, and filters by words; text has it as it is."""


@dataclass(frozen=True)
class Advice:
    """A change to make.

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
        minor: minor ones: listed in text, folded on the page.
        minor_title: what the minor ones have in common.
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
        limit: the number of lines shown as text.
        what: what the lines are, to say how many are left out.
    """

    summary: str
    lines: Sequence[str]
    limit: int = 12
    what: str = "lines"


@dataclass(frozen=True)
class Code(Block):
    """Text that keeps its lines and spaces, such as commands and files."""

    text: str


@dataclass(frozen=True)
class Facts(Block):
    """Names with descriptions."""

    facts: dict[str, str]


@dataclass(frozen=True)
class Chip:
    """A word or two below the title of the page."""

    text: str
    style: Style = ""
    hint: str = ""


@dataclass(frozen=True)
class Page(OneLine):
    """A whole report.

    Attributes:
        title: the title of the page.
        blocks: what it holds.
        headline: the first line of the text; by default the title.
        headline_style: the style of the headline.
        chips: short facts below the title of the page.
        footer: the end of the page, after the note on who made it.
    """

    title: str
    blocks: Sequence[Block]
    headline: str = ""
    headline_style: Style = "strong"
    chips: Sequence[Chip] = ()
    footer: str = ""
