"""The common style of a Brain's plots."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
