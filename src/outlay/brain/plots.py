"""The common style of a Brain's plots, and the plot of rates over time."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

TEXT = "#333333"
GRID = "#e5e7eb"
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#d53f8c", "#b7791f", "#0e7490", "#4a5568")
"""Colours of the populations, in the order of the Brain; distinguishable with colour-vision deficiency."""
_NUM_BINS = 200
"""The most points of a line: what a plot of this width can show."""
_SHORTEST_BIN = 5.0
"""The shortest bin in ms; shorter ones say little about the rate of a population."""


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


def rates_plot(counts: Mapping[str, np.ndarray], num_neurons: Mapping[str, int], dt: float) -> Figure:
    """Plot the mean rate of each population's neurons over time, in Hz.

    Args:
        counts: the number of spikes in each step, by population.
        num_neurons: the number of neurons of each population.
        dt: the duration of a step in ms.

    Example:
        >>> figure = rates_plot({"A": np.ones(100)}, {"A": 10}, dt=1.0)
        >>> float(figure.axes[0].lines[0].get_ydata()[0])
        100.0
    """
    figure = ShownFigure(figsize=(9, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, steps) in enumerate(counts.items()):
        per_bin = bin_steps(len(steps), dt)
        times, rates = binned_rates(steps, num_neurons[name], dt, per_bin)
        axes.plot(times, rates, color=colour(number), linewidth=1.4, label=name)
    axes.set(xlabel="time (ms)", ylabel="rate (Hz)")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    if counts:
        axes.legend(frameon=False, labelcolor=TEXT, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    tidy(axes)
    return figure


def bin_steps(num_steps: int, dt: float) -> int:
    """Return the number of steps per bin."""
    return max(1, round(_SHORTEST_BIN / dt), -(-num_steps // _NUM_BINS))


def binned_rates(counts: np.ndarray, num_neurons: int, dt: float, per_bin: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the centre of each bin in ms, and the rate in it in Hz; the last bin may be shorter."""
    starts = np.arange(0, len(counts), per_bin)
    if not len(starts):
        return np.zeros(0), np.zeros(0)
    ends = np.minimum(starts + per_bin, len(counts))
    rates = np.add.reduceat(counts, starts) / (ends - starts) / num_neurons * 1000.0 / dt
    return (starts + ends) / 2 * dt, rates
