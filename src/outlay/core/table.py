"""Plain facts to text: a rich table or renderable as a string, with colour only where a terminal shows it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table

from outlay.core.visible import visible


@dataclass(frozen=True)
class Lines:
    """What rich prints as wide as its console.

    Attributes:
        render: the renderables for a console so many columns wide.
    """

    render: Callable[[int], Iterator[Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.render(options.max_width)


@dataclass(frozen=True)
class Visible:
    """A renderable whose texts hold nothing that a terminal would obey; its own colours stay.

    Attributes:
        renderable: what rich can draw.
    """

    renderable: Any

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> Table:
    """A borderless table whose columns named in `right` are right-aligned; cells are plain text, not markup."""
    built = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        built.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        built.add_row(*row)
    return built


def to_text(renderable: Any, *, width: int = 160) -> str:
    """Render to a plain string without colour, for `str()` and for files."""
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        color_system=None,
        force_jupyter=False,  # in a notebook rich would display the text instead of writing it
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.print(Visible(renderable))
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip("\n").split("\n"))
