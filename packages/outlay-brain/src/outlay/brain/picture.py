"""Draw a Brain: its modules as boxes, and its connections as arrows, in the style of all plots of a Brain."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from outlay.brain.picture_layout import Edge, Placed, columns_of, placed
from outlay.brain.wiring import Wiring
from outlay.kit import INPUTS

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
_MOST_LETTERS = 23  # of ten points, in a box
"""The distance between columns, and between rows."""
_SPIKES, _VALUES, _INHIBITS = COLOURS[0], COLOURS[1], COLOURS[4]
Point = tuple[float, float]
Edges = dict[Edge, float]
"""The longest delay of the connections between two boxes in steps, by their names."""


@dataclass(frozen=True)
class Box:
    """A module, or an input or output of the Brain.

    Attributes:
        name: its label.
        below: the small text under the label.
        colour: the colour of its frame.
        column: its column, from the left.
    """

    name: str
    below: str
    colour: str
    column: int


def draw(wiring: Wiring) -> Figure:
    """Draw a Brain as a matplotlib figure.

    Signals go from left to right: a module is in the column after the last module that it reads, but for cycles, and
    outputs are on the right. No arrow runs behind a box. Modules with spikes are blue, or pink if most of their neurons
    are inhibitory; modules with values are orange.

    Args:
        wiring: its modules and their connections.
    """
    edges = _edges(wiring)
    boxes = _boxes(wiring, edges)
    layout = placed({name: box.column for name, box in boxes.items()}, edges)
    at = {name: _center(box.column, layout.rows[name]) for name, box in boxes.items()}
    across = [x for x, _ in at.values()]
    up = [row * DOWN for row in layout.rows.values()]
    size = (max(across) - min(across) + WIDTH + 1, max(up) - min(up) + HEIGHT + 1.4)
    figure = ShownFigure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlim(min(across) - WIDTH / 2 - 0.3, max(across) + WIDTH / 2 + 0.8)
    axes.set_ylim(min(up) - HEIGHT / 2 - 0.6, max(up) + HEIGHT / 2 + 0.8)
    axes.set_aspect("equal")
    axes.axis("off")
    frames = {name: _draw_box(axes, box, at[name]) for name, box in boxes.items()}
    for edge, delay in edges.items():
        points, bend = route(edge, layout)
        _draw_arrow(axes, frames[edge[0]].get_edgecolor(), points, delay, is_loop=edge[0] == edge[1], bend=bend)
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
    sources = [*(f"{INPUTS}:{name}" for name in brain.inputs), *brain.modules]
    columns = _place_inputs(columns_of(sources, [edge for edge in edges if edge[1] in brain.modules]), edges)
    last = max(columns.values()) + 1
    boxes = {
        f"{INPUTS}:{name}": Box(name, f"input\n{shape}", TEXT, columns[f"{INPUTS}:{name}"])
        for name, shape in brain.inputs.items()
    }
    outputs = {f"outputs:{name}": Box(name, "output", TEXT, last) for name in brain.outputs}
    return {**boxes, **{name: _box(wiring, name, columns[name]) for name in brain.modules}, **outputs}


def _box(wiring: Wiring, name: str, column: int) -> Box:
    module, ports = wiring.blueprint.modules[name], wiring.output_ports[name].values()
    size = " + ".join(str(math.prod(port.shape or ())) for port in ports)
    inhibits = getattr(module, "inhibitory_rate", 0) > 0.5
    colour = _VALUES if any(port.kind == "values" for port in ports) else _INHIBITS if inhibits else _SPIKES
    return Box(name, f"{_shortened(type(module).__name__)}\n{size}", colour, column)


def _shortened(name: str) -> str:
    """Return a name of a class as far as it fits into a box."""
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"


def _place_inputs(columns: dict[str, int], edges: Edges) -> dict[str, int]:
    """Move each input beside the first module that reads it."""
    inputs = [name for name in columns if name.startswith(f"{INPUTS}:")]
    readers = {name: [columns[target] for source, target in edges if source == name] for name in inputs}
    moved = {name: max(0, min(of) - 1) for name, of in readers.items() if of}
    return columns | moved


def _draw_box(axes: Axes, box: Box, at: tuple[float, float]) -> FancyBboxPatch:
    x, y = at
    style = "round,pad=0,rounding_size=0.12"
    corner = (x - WIDTH / 2, y - HEIGHT / 2)
    frame = FancyBboxPatch(corner, WIDTH, HEIGHT, boxstyle=style, fc="white", ec=box.colour, lw=1.6, zorder=3)
    axes.add_patch(frame)
    axes.text(x, y + 0.17, box.name, ha="center", va="center", fontsize=12, color=TEXT, zorder=4)
    axes.text(
        x, y - 0.13, box.below, ha="center", va="center", fontsize=10, linespacing=1.05, color="#6b7280", zorder=4
    )
    return frame


def _draw_arrow(axes: Axes, colour: Any, points: Sequence[Point], delay: float, *, is_loop: bool, bend: float) -> None:
    look = {"arrowstyle": "-|>", "mutation_scale": 11, "color": colour, "lw": 1.2, "alpha": 0.8, "zorder": 2}
    start, end = points[0], points[-1]
    if is_loop or len(points) == 2:
        style = f"arc3,rad={bend:g}"
        axes.add_patch(
            FancyArrowPatch(start, end, connectionstyle=style, shrinkA=0, shrinkB=0 if is_loop else 1, **look)
        )
    else:
        axes.add_patch(FancyArrowPatch(path=Path(points), **look))
    if delay > 1:
        middle = points[len(points) // 2 - 1], points[len(points) // 2]
        x, y = (sum(both) / 2 for both in zip(*middle, strict=True))
        axes.text(x, y + (0.45 if is_loop else 0.1), f"{delay:g} steps", ha="center", fontsize=10, color=TEXT, zorder=5)


def route(edge: Edge, layout: Placed) -> tuple[list[Point], float]:
    """Return the points that an arrow goes through, and how far it is bent where there are two.

    Args:
        edge: the names of the boxes.
        layout: where boxes and lines are.
    """
    (x, y), (to_x, to_y) = (_center(layout.columns[name], layout.rows[name]) for name in edge)
    if edge[0] == edge[1]:
        return [(x + 0.28, y + HEIGHT / 2), (x - 0.28, y + HEIGHT / 2)], 1.3
    if x == to_x:
        # Beside the column: in it other boxes may stand between these two.
        side = x + WIDTH / 2
        up = to_y > y
        length = abs(to_y - y)
        sign = 1 if up else -1
        ends = [(side, y + sign * 0.12), (side, to_y - sign * 0.12)]
        return ends, sign * (ACROSS - WIDTH) * 0.7 / length
    right = 1 if to_x > x else -1
    # Arrows back leave and enter a little higher, so that they do not lie on those that go forward.
    lift = 0.0 if right > 0 else 0.14
    points = [(x + right * WIDTH / 2, y + lift)]
    for column, row in layout.through(edge):
        at_x, at_y = _center(column, row)
        points += [(at_x - right * WIDTH / 2, at_y), (at_x + right * WIDTH / 2, at_y)]
    return [*points, (to_x - right * WIDTH / 2, to_y + lift)], 0.0


def _center(column: int, row: float) -> Point:
    return column * ACROSS, row * DOWN
