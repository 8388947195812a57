"""A raster plot: a dot for each spike, time to the right, neurons downwards."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from outlay.brain.plots.figure import ShownFigure
from outlay.brain.plots.style import TEXT, colour

_MOST_DOTS = 200_000
"""Beyond it dots only cover each other, and pictures grow."""


def raster_plot(
    spikes: Mapping[str, tuple[np.ndarray, np.ndarray]], num_neurons: Mapping[str, int], *, start: float, end: float
) -> Figure:
    """One band a population, each as high as it has neurons, the first at the top.

    Args:
        spikes: for each population the times of its spikes in ms, and which neurons spiked.
        num_neurons: of each population.
        start: where time begins, in ms.
        end: where it ends.

    Example:
        >>> figure = raster_plot({"A": (np.array([1.0, 2.0]), np.array([0, 4]))}, {"A": 5}, start=0, end=10)
        >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
        ['A (5)']
    """
    total = max(1, sum(num_neurons.values()))
    figure = ShownFigure(figsize=(9, min(7.0, 2.0 + total / 220)), layout="constrained")
    axes = figure.add_subplot()
    base, middles = 0, {}
    size = float(np.clip(4000 / total, 0.6, 9.0))
    gap = max(1, total // 60)
    for number, (name, (times, neurons)) in enumerate(spikes.items()):
        every = -(-len(times) // _MOST_DOTS) or 1
        axes.scatter(
            times[::every],
            neurons[::every] + base,
            s=size,
            marker="|" if total < 200 else ".",
            linewidths=0.6,
            color=colour(number),
            rasterized=True,
        )
        middles[name] = base + (num_neurons[name] - 1) / 2
        base += num_neurons[name] + gap
        axes.axhline(base - gap / 2 - 0.5, color="#d6dae1", linewidth=0.6)
    axes.set(xlabel="time (ms)", xlim=(start, end), ylim=(base - gap / 2 - 0.5, -gap / 2 - 0.5))
    axes.set_yticks(list(middles.values()), [f"{name} ({num_neurons[name]})" for name in middles])
    for number, label in enumerate(axes.get_yticklabels()):
        label.set_color(colour(number))
    axes.tick_params(axis="y", length=0, labelsize=9)
    axes.tick_params(axis="x", colors=TEXT, labelsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#b0b7c3")
    return figure
