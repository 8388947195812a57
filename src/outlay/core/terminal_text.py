"""Text for terminals and files: tables and other facts, coloured where a terminal shows it, and nothing it obeys.

Errors quote names and files, so each loads this module: rich is imported when something is rendered.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

# Characters that a terminal obeys instead of showing (C0, DEL, C1), that reverse or break a line (bidirectional marks,
# U+2028), and lone surrogates, which no stream can encode. Newlines and tabs stay: messages are formatted with them.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Escape the control characters of a text, so that no terminal obeys them.

    Everything that Outlay prints goes through here: errors where they become text, tables where they are rendered,
    lines where a command writes them.

    >>> visible("w\x1b]0;title\x07")
    'w\\x1b]0;title\\x07'
    """
    return _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


@dataclass(frozen=True)
class Lines:
    """Renderables that adapt to the width of rich's console.

    Attributes:
        render: returns the renderables for a console of that many columns.
    """

    render: Callable[[int], Iterator[Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.render(options.max_width)


@dataclass(frozen=True)
class Visible:
    """A renderable whose control characters are escaped; rich's own colours stay.

    Attributes:
        renderable: anything that rich can draw.
    """

    renderable: Any

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        # Cast here: rich would first ask for an attribute that nothing has, and a report would look for its like.
        cast = getattr(self.renderable, "__rich__", None)
        for segment in console.render(cast() if cast else self.renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """Return a borderless table; columns named in `right` are right-aligned, and cells are plain text, not markup."""
    from rich.table import Table

    built = Table(box=None, pad_edge=False, header_style="bold", show_header=any(map(str.strip, columns)))
    for column in columns:
        built.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        built.add_row(*row)
    return built


def folded(rows: Sequence[Sequence[str]], *, names: Sequence[int], all_at: str) -> tuple[list[list[str]], str]:
    """Shorten a long table: rows that differ only in numbers inside names become one, and the rest is cut.

    A table of at most `MAX_UNFOLDED` rows is not changed.

    Args:
        rows: the cells of each row; the first is the path of a leaf.
        names: the columns that hold names, whose numbers may differ: `layers.0.kernel` and `layers.1.kernel`.
        all_at: where all rows can be read; ends the sentence about what is left out.

    Returns:
        The rows, and a sentence about what is left out, empty if nothing is.

    >>> rows = [[f"layers.{i}.kernel", "(8, 8)"] for i in range(300)]
    >>> folded(rows, names=[0], all_at="plan.to_json()")
    ([['layers.{0..299}.kernel x300', '(8, 8)']], '300 rows in 1, similar ones folded; all of them: plan.to_json()')
    """
    if len(rows) <= MAX_UNFOLDED:
        return [list(row) for row in rows], ""
    alike: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for row in rows:
        key = tuple(_NUMBER.sub("*", cell) if i in names else cell for i, cell in enumerate(row))
        alike.setdefault(key, []).append(row)
    short = [_as_one(group) for group in alike.values()]
    cut = f", {len(short) - MAX_ROWS:,} more left out" if len(short) > MAX_ROWS else ""
    shown = short[:MAX_ROWS]
    if len(shown) == len(rows):
        return shown, ""
    return shown, f"{len(rows):,} rows in {len(shown):,}, similar ones folded{cut}; all of them: {all_at}"


def _as_one(rows: Sequence[Sequence[str]]) -> list[str]:
    if len(rows) == 1:
        return list(rows[0])
    from outlay.core.equal_layers import fold_numbers

    first, *others = [fold_numbers(list(dict.fromkeys(cells))) for cells in zip(*rows, strict=True)]
    return [f"{first} x{len(rows):,}", *others]


MAX_UNFOLDED = 60
"""Rows that fit on a screen or two; in longer tables equal layers become one row."""

MAX_ROWS = 200
"""Rows that a person will scroll through; laying out more takes seconds."""

_NUMBER = re.compile(r"(?<![\s(,])\d+")  # neither in a shape nor a number that stands alone


def to_text(renderable: Any, *, width: int = 160) -> str:
    """Render to a plain string without colour, for `str()` and for files."""
    buffer = io.StringIO()
    _console(buffer, width).print(Visible(renderable))
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip("\n").split("\n"))


def has_more_lines(renderable: Any, num: int, *, width: int) -> bool:
    """Return whether `to_text` would give more lines than this number; nothing behind them is rendered.

    >>> [has_more_lines(Lines(lambda width: iter("abc")), num, width=80) for num in (2, 3)]
    [True, False]
    """
    console, line = _console(io.StringIO(), width), 1
    for segment in console.render(Visible(renderable)):
        for number, part in enumerate(segment.text.split("\n")):
            line += number > 0
            if part and line > num:
                return True
    return False


def _console(file: io.StringIO, width: int) -> Console:
    from rich.console import Console

    return Console(
        file=file,
        width=width,
        color_system=None,
        force_jupyter=False,  # in a notebook rich would display the text instead of writing it
        markup=False,
        highlight=False,
        emoji=False,
    )
