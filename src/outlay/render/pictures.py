"""The blocks of a report that are drawn: bars, lanes, areas, heat maps, dots, images. Text has numbers for some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from outlay.render.page import Block, Segment


@dataclass(frozen=True)
class Bar:
    """A bar with its name and its value."""

    name: str
    value: str
    segments: Sequence[Segment]


@dataclass(frozen=True)
class Bars(Block):
    """Bars below one another; in text the names and values in a line.

    Attributes:
        title: what is compared.
        bars: the bars.
        with_names: whether each stretch bears its name, for bars of several stretches.
        limit: bars that text names.
    """

    title: str
    bars: Sequence[Bar]
    with_names: bool = False
    limit: int = 6


@dataclass(frozen=True)
class Stack(Block):
    """One bar of all that makes up a whole, with a legend; in text a list.

    Attributes:
        segments: the parts; a part without a share stands in the legend alone.
        mark: a point on the bar, such as a peak.
    """

    segments: Sequence[Segment]
    mark: Segment | None = None


@dataclass(frozen=True)
class Legend(Block):
    """What the colours of the blocks before it mean; the page alone has colours."""

    segments: Sequence[Segment]


@dataclass(frozen=True)
class Span:
    """A stretch of a lane: where it begins and how long it is, as shares of the whole, and how much of it is marked."""

    begin: float
    share: float
    colour: str
    hint: str
    marked: float = 0.0


@dataclass(frozen=True)
class Lanes(Block):
    """What happens at the same time, in lanes below one another; the page alone can draw it.

    Attributes:
        lanes: the stretches of each lane, by its name.
        legend: what the time is made of.
        mark: what the marked stretches are.
    """

    lanes: dict[str, Sequence[Span]]
    legend: Sequence[Segment]
    mark: str


@dataclass(frozen=True)
class Areas(Block):
    """Quantities on top of one another, stretch after stretch; in text a bar for some of the stretches.

    Attributes:
        layers: the quantities from the lowest to the highest, for the legend, each with its name and colour.
        sizes: of each stretch the quantity of every layer.
        mark: the stretch that is marked, by its number, and what it is in words.
        x_title: what the stretches are of.
        y_title: what the quantities are of.
        format_y: a quantity in words.
    """

    layers: Sequence[Segment]
    sizes: Sequence[Sequence[float]]
    mark: tuple[int, str]
    x_title: str
    y_title: str
    format_y: Callable[[float], str]


@dataclass(frozen=True)
class HeatRow:
    """A row of a heat map.

    Attributes:
        name: what it is of.
        cells: the words of each cell, and how hot it is, from 0 to 1.
        total: the sum in words.
        share: the sum, as a share of the largest.
        group: what rows below one another have in common.
        hint: the whole name.
    """

    name: str
    cells: Sequence[tuple[str, float]]
    total: str
    share: float
    group: str = ""
    hint: str = ""


@dataclass(frozen=True)
class HeatMap(Block):
    """A table whose cells are the hotter the more they hold.

    Attributes:
        row_title: what the rows are.
        columns: the heads of the columns.
        rows: the rows.
        group_title: what groups of rows are; empty without groups.
    """

    row_title: str
    columns: Sequence[str]
    rows: Sequence[HeatRow]
    group_title: str = ""


@dataclass(frozen=True)
class Image(Block):
    """A picture, as a PNG in base64; the page alone can show it.

    Attributes:
        title: what it shows.
        png: the picture.
        caption: how to read it.
        is_wide: whether it needs the whole width.
    """

    title: str
    png: str
    caption: str = ""
    is_wide: bool = False


@dataclass(frozen=True)
class Frame(Block):
    """A page within the page."""

    title: str
    html: str


@dataclass(frozen=True)
class Point:
    """A numbered dot: where it stands, its colour, and how it is drawn."""

    x: float
    y: float
    number: int
    colour: str
    style: Literal["", "chosen", "beyond"]
    hint: str


@dataclass(frozen=True)
class Scatter(Block):
    """Dots by two quantities, a front of those that no other beats, and a limit; the page alone can draw it.

    Attributes:
        points: the dots; later ones are drawn above earlier ones.
        front: corners of the front, from the least of `x` on.
        x_title: the quantity across.
        y_title: the quantity up.
        format_x: the quantity across in words.
        format_y: the quantity up in words.
        limit: what `x` may not exceed.
        limit_title: what the limit is.
        legend: the colours of the dots.
    """

    points: Sequence[Point]
    front: Sequence[tuple[float, float]]
    x_title: str
    y_title: str
    format_x: Callable[[float], str]
    format_y: Callable[[float], str]
    limit: float
    limit_title: str
    legend: Sequence[Segment] = ()
