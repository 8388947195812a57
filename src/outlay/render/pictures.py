"""The blocks of a report that are drawn: bars, timelines, areas, heat maps, dots, devices, arrays, images.

Text has numbers for some, and draws the blocks of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outlay.render.page import Block, Segment


@dataclass(frozen=True)
class Bar:
    """A bar with its name and its value."""

    name: str
    value: str
    segments: Sequence[Segment]


@dataclass(frozen=True)
class Bars(Block):
    """Bars one below the other; in text, their names and values in one line.

    Attributes:
        title: what is compared.
        bars: the bars.
        with_names: whether each section is labelled, for bars with several sections.
        limit: the number of bars that text names.
    """

    title: str
    bars: Sequence[Bar]
    with_names: bool = False
    limit: int = 6


@dataclass(frozen=True)
class Stack(Block):
    """One bar for the parts of a whole, with a legend; in text a list.

    Attributes:
        segments: the parts; a part without a share appears only in the legend.
        mark: a point on the bar, such as a peak.
    """

    segments: Sequence[Segment]
    mark: Segment | None = None


@dataclass(frozen=True)
class Legend(Block):
    """The meaning of the colours of the preceding blocks; only the page has colours."""

    segments: Sequence[Segment]


@dataclass(frozen=True)
class Timeline(Block):
    """A step in the order of execution, to zoom and to unfold; a page has one, drawn by a script.

    Attributes:
        data: makes, once the page is drawn, the rows that the scripts price.
    """

    data: Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class WhatIf(Block):
    """The step of the page's timeline on other hardware, priced anew by a script."""


@dataclass(frozen=True)
class WeakScaling(Block):
    """The time of that step over the number of hosts, each with the same batch."""


@dataclass(frozen=True)
class Roofline(Block):
    """The speed of each line of that step over its work a byte of memory."""


@dataclass(frozen=True)
class Areas(Block):
    """Quantities on top of one another, stretch after stretch; in text a bar for some of the stretches.

    Attributes:
        layers: the quantities from the lowest to the highest, for the legend, each with its name and colour.
        sizes: for each stretch the quantity of every layer.
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


Unit = Literal["", "percent", "bytes"]
"""How the values of a chart are written."""


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart: its name, and a value at each of some steps, in order; None where it is not finite."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Chart(Block):
    """Lines over steps, to zoom and to read under the pointer; only the page can draw it, with a script.

    Attributes:
        title: what the values are; no two charts of a page have the same.
        lines: the lines.
        x_title: what the steps are; charts with the same zoom together.
        unit: how a value is written.
    """

    title: str
    lines: Sequence[ChartLine]
    x_title: str
    unit: Unit = ""


@dataclass(frozen=True)
class Live(Block):
    """Makes the page follow what it shows, from where it is served; a page has one.

    Attributes:
        every: the seconds between two looks.
        links: other pages that are served beside it, by what they show.
    """

    every: float
    links: dict[str, str]


@dataclass(frozen=True)
class HeatRow:
    """A row of a heat map.

    Attributes:
        name: what it is about.
        cells: the text of each cell, and its heat from 0 to 1.
        total: the sum in words.
        share: the sum, as a share of the largest.
        group: what neighbouring rows have in common.
        hint: the full name.
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
    """A picture, as a PNG in base64; only the page can show it.

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
    """A numbered dot: its position, its colour, and its style; `here` is labelled instead."""

    x: float
    y: float
    number: int
    colour: str
    style: Literal["", "chosen", "beyond", "here"]
    hint: str


@dataclass(frozen=True)
class Scatter(Block):
    """Dots by two quantities, their Pareto front, and a limit; only the page can draw it.

    Attributes:
        points: the dots; later ones are drawn on top.
        front: the corners of the front, by increasing `x`.
        x_title: the horizontal quantity.
        y_title: the vertical quantity.
        format_x: writes the horizontal quantity.
        format_y: writes the vertical quantity.
        limit: the value that `x` may not exceed.
        limit_title: the name of the limit.
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


@dataclass(frozen=True)
class DeviceCell:
    """A device in its place: its id and name, its colour, and what is said below it and of it."""

    id: int
    name: str
    colour: str
    remark: str
    hint: str


@dataclass(frozen=True)
class MeshGrid:
    """The devices of a mesh in the plane.

    Attributes:
        axes: the names of the axes, each with its length and the way it runs, in words; empty without a mesh.
        panels: a title and rows of devices, for each index of the axes that are not drawn.
        is_small: whether there are so many devices that nothing is written below them.
    """

    axes: dict[str, str]
    panels: Sequence[tuple[str, Sequence[Sequence[DeviceCell]]]]
    is_small: bool


@dataclass(frozen=True)
class DeviceGrid(Block):
    """The devices of each mesh, in the colours of an `ArrayTable`; only the page can draw it.

    Attributes:
        meshes: makes the pictures, once the page is drawn.
    """

    meshes: Callable[[], Sequence[MeshGrid]]


@dataclass(frozen=True)
class Panel:
    """One slice of an array over its leading split dims.

    Attributes:
        title: the slice, such as `[0:4, :, :]`; empty if one panel shows the whole array.
        cells: the device ids of each block, by row and column.
    """

    title: str
    cells: Sequence[Sequence[tuple[int, ...]]]


@dataclass(frozen=True)
class BlockGrid(Block):
    """The blocks of one array with the devices that hold them; the page draws it in its `ArrayTable`.

    Attributes:
        row_dim: the vertical dim, or None if all of a panel is one row.
        column_dim: the horizontal dim, or None for an array of rank 0.
        rows: the slice of each row, such as `0:2`; of a long row that is wrapped into lines, those of the lines.
        columns: the slice of each column.
        height: length of the row dim, 1 without one.
        width: length of the column dim, 1 without one.
        panels: the slices over the other split dims.
        format_ids: the devices of a block, in words.
    """

    row_dim: int | None
    column_dim: int | None
    rows: Sequence[str]
    columns: Sequence[str]
    height: int
    width: int
    panels: Sequence[Panel]
    format_ids: Callable[[tuple[int, ...]], str]


@dataclass(frozen=True)
class Explorer(Block):
    """A choice of mesh and layout, with the figures of each; a page has one, drawn by a script.

    Attributes:
        data: the names of meshes, layouts and leaves, and the figures of each combination, as the script reads them.
    """

    data: dict[str, Any]


@dataclass(frozen=True)
class ArrayTable(Block):
    """Arrays to sort, filter and fold, with the picture of the chosen one's blocks; a page has one, drawn by a script.

    Attributes:
        data: makes, once the page is drawn, the leaves, their modules and pictures, and the colours of devices, as the
            script reads them.
        of_one: whether there is one array, and only its picture is drawn.
        is_broad: whether the picture stands below the table, in its whole width.
    """

    data: Callable[[], dict[str, Any]]
    of_one: bool
    is_broad: bool
