"""Draw a Brain: its modules as boxes, and its connections as arrows, in the style of all plots of a Brain."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from outlay.brain.connections import Blueprint
from outlay.brain.wiring import Wiring
from outlay.graph.step_graph import INPUTS

TEXT = "#333333"
GRID = "#e5e7eb"
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#d53f8c", "#b7791f", "#0e7490", "#4a5568")
"""Colours of the populations, in the order of the Brain; distinguishable with colour-vision deficiency."""


def colour(number: int) -> str:
    """Return the colour of a population by its index."""
    return COLOURS[number % len(COLOURS)]


def number_of(address: str, populations: Sequence[str]) -> int:
    """Return the index of the population of an address, or the next index for other addresses."""
    module = address.partition(".")[0]
    return populations.index(module) if module in populations else len(populations)


def tidy(axes: Axes) -> None:
    """Remove the frame, lighten the ticks, and draw a faint grid behind."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b0b7c3")
    axes.tick_params(colors=TEXT, labelsize=9)
    axes.grid(visible=True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


class ShownFigure(Figure):
    """A matplotlib figure outside pyplot, so that no window or global state holds it."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


WIDTH, HEIGHT = 1.9, 0.62
ACROSS, DOWN = 3.0, 1.3
"""The distance between columns, and between rows."""
_SPIKES, _VALUES, _INHIBITS = COLOURS[0], COLOURS[1], COLOURS[4]
Edges = dict[tuple[str, str], float]
"""The longest delay of the connections between two boxes in steps, by their names."""


@dataclass(frozen=True)
class Box:
    """A module, or an input or output of the Brain.

    Attributes:
        name: its label.
        below: the small text under the label.
        colour: the colour of its frame.
        column: the number of modules that a signal passes before it.
    """

    name: str
    below: str
    colour: str
    column: int


def draw(wiring: Wiring) -> Figure:
    """Draw a Brain as a matplotlib figure.

    Inputs are on the left and outputs on the right; the column of a module is the length of the shortest path from an
    input. Modules with spikes are blue, or pink if most of their neurons are inhibitory; modules with values are
    orange.

    Args:
        wiring: its modules and their connections.
    """
    edges = _edges(wiring)
    boxes = _boxes(wiring, edges)
    at = _positions(boxes, edges)
    across = [x for x, _ in at.values()]
    up = [y for _, y in at.values()]
    size = (max(across) - min(across) + WIDTH + 1, max(up) - min(up) + HEIGHT + 1.4)
    figure = ShownFigure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(min(across) - WIDTH / 2 - 0.3, max(across) + WIDTH / 2 + 0.3)
    axes.set_ylim(min(up) - HEIGHT / 2 - 0.6, max(up) + HEIGHT / 2 + 0.8)
    axes.set_aspect("equal")
    axes.axis("off")
    frames = {name: _draw_box(axes, box, at[name]) for name, box in boxes.items()}
    for (source, target), delay in edges.items():
        _draw_arrow(axes, frames[source], frames[target], at[source], at[target], delay)
    return figure


def _edges(wiring: Wiring) -> Edges:
    edges: Edges = {}
    for name, by_port in wiring.reads.items():
        for source in (source for sources in by_port.values() for source in sources):
            origin = f"{INPUTS}:{source.port}" if source.part == INPUTS else source.part
            edges[origin, name] = max(source.latency, edges.get((origin, name), 1))
    for name, (module, _) in wiring.outputs.items():
        edges[module, f"outputs:{name}"] = 1
    return edges


def _boxes(wiring: Wiring, edges: Edges) -> dict[str, Box]:
    brain = wiring.blueprint
    columns = _columns(brain, edges)
    last = max(columns.values()) + 1
    inputs = {f"{INPUTS}:{name}": Box(name, f"input {shape}", TEXT, 0) for name, shape in brain.inputs.items()}
    outputs = {f"outputs:{name}": Box(name, "output", TEXT, last) for name in brain.outputs}
    return {**inputs, **{name: _box(wiring, name, columns[name]) for name in brain.modules}, **outputs}


def _box(wiring: Wiring, name: str, column: int) -> Box:
    module, ports = wiring.blueprint.modules[name], wiring.output_ports[name].values()
    size = " + ".join(str(math.prod(port.shape or ())) for port in ports)
    inhibits = getattr(module, "inhibitory_rate", 0) > 0.5
    colour = _VALUES if any(port.kind == "values" for port in ports) else _INHIBITS if inhibits else _SPIKES
    return Box(name, f"{type(module).__name__}, {size}", colour, column)


def _columns(brain: Blueprint, edges: Edges) -> dict[str, int]:
    """Compute the distance of each module from an input; modules that no input reaches are in the first column."""
    columns = {f"{INPUTS}:{name}": 0 for name in brain.inputs}
    reached = list(columns)
    # The list grows while it is walked: breadth first.
    for source in reached:
        for target in [after for before, after in edges if before == source and after in brain.modules]:
            if target not in columns:
                columns[target] = columns[source] + 1
                reached.append(target)
    return {**dict.fromkeys(brain.modules, 1), **columns}


def _positions(boxes: dict[str, Box], edges: Edges) -> dict[str, tuple[float, float]]:
    """Position the boxes: columns from left to right, and each box at the height of its sources."""
    at: dict[str, tuple[float, float]] = {}
    for column in range(max(box.column for box in boxes.values()) + 1):
        names = [name for name, box in boxes.items() if box.column == column]
        before = {
            name: [at[source][1] for source, target in edges if target == name and source in at] for name in names
        }
        # Put boxes at the mean height of their sources, so that few arrows cross.
        names.sort(key=lambda name: -sum(before[name]) / max(len(before[name]), 1))
        for row, name in enumerate(names):
            at[name] = (column * ACROSS, (len(names) - 1) / 2 * DOWN - row * DOWN)
    return at


def _draw_box(axes: Axes, box: Box, at: tuple[float, float]) -> FancyBboxPatch:
    x, y = at
    style = "round,pad=0,rounding_size=0.12"
    corner = (x - WIDTH / 2, y - HEIGHT / 2)
    frame = FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle=style, fc="white", ec=box.colour, lw=1.6, zorder=3)
    axes.add_patch(frame)
    axes.text(x, y + 0.1, box.name, ha="center", va="center", fontsize=11, color=TEXT, zorder=4)
    axes.text(x, y - 0.14, box.below, ha="center", va="center", fontsize=6.5, color="#6b7280", zorder=4)
    return frame


def _draw_arrow(
    axes: Axes,
    source: FancyBboxPatch,
    target: FancyBboxPatch,
    start: tuple[float, float],
    end: tuple[float, float],
    delay: float,
) -> None:
    colour = source.get_edgecolor()
    look = {"arrowstyle": "-|>", "mutation_scale": 11, "color": colour, "lw": 1.2, "alpha": 0.8, "zorder": 2}
    if source is target:
        x, y = start
        ends = ((x + 0.28, y + HEIGHT / 2), (x - 0.28, y + HEIGHT / 2))
        axes.add_patch(FancyArrowPatch(*ends, connectionstyle="arc3,rad=1.3", shrinkA=0, shrinkB=0, **look))
        middle = (x, y + HEIGHT / 2 + 0.45)
    else:
        # Arrows back are bent, so that they do not lie on those that go forward.
        bend = 0.0 if end[0] > start[0] else 0.18
        points = tuple(_anchors(start, end))
        axes.add_patch(FancyArrowPatch(*points, connectionstyle=f"arc3,rad={bend}", shrinkA=0, shrinkB=1, **look))
        middle = ((points[0][0] + points[1][0]) / 2, (points[0][1] + points[1][1]) / 2 + 0.1)
    if delay > 1:
        axes.text(*middle, f"{delay:g} steps", ha="center", fontsize=6.5, color=TEXT, zorder=5)


def _anchors(start: tuple[float, float], end: tuple[float, float]) -> Iterator[tuple[float, float]]:
    """Choose where an arrow leaves one box and enters another: side to side if it goes right, else top or bottom."""
    if end[0] > start[0]:
        yield start[0] + WIDTH / 2, start[1]
        yield end[0] - WIDTH / 2, end[1]
    elif end[0] == start[0]:
        sign = 1 if end[1] > start[1] else -1
        yield start[0], start[1] + sign * HEIGHT / 2
        yield end[0], end[1] - sign * HEIGHT / 2
    else:
        yield start[0] - WIDTH / 2, start[1] + 0.12
        yield end[0] + WIDTH / 2, end[1] + 0.12
