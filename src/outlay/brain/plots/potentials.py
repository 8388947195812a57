"""Recorded potentials over time: some neurons of each population."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from outlay.brain.plots.figure import ShownFigure
from outlay.brain.plots.style import colour, number_of, tidy

_NUM_NEURONS = 4
"""Lines in a panel that can still be followed."""


def potentials_plot(potentials: Mapping[str, np.ndarray], times: np.ndarray, populations: Sequence[str] = ()) -> Figure:
    """One panel for each recorded leaf, with its first neurons.

    Args:
        potentials: by address, (rows, neurons), in mV relative to rest.
        times: of each row, in ms.
        populations: names in the order of their colours.

    Example:
        >>> figure = potentials_plot({"A.soma.potential": np.zeros((10, 3))}, np.arange(10))
        >>> len(figure.axes[0].lines)
        3
    """
    figure = ShownFigure(figsize=(9, 0.8 + 1.3 * max(1, len(potentials))), layout="constrained")
    panels = np.atleast_1d(figure.subplots(max(1, len(potentials)), 1, sharex=True))
    for axes, (address, values) in zip(panels, potentials.items(), strict=False):
        flat = np.asarray(values, np.float32).reshape(len(values), -1)
        for neuron in range(min(_NUM_NEURONS, flat.shape[1])):
            axes.plot(
                *_with_gaps(times, flat[:, neuron]),
                color=colour(number_of(address, populations)),
                alpha=1 - 0.22 * neuron,
                linewidth=0.9,
            )
        axes.set_ylabel(f"{address.split('.')[0]}\n(mV)", fontsize=9)
        axes.margins(x=0)
        tidy(axes)
    panels[-1].set_xlabel("time (ms)")
    return figure


def _with_gaps(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A line that breaks where nothing was recorded."""
    if len(times) < 3:
        return times, values
    apart = np.diff(times)
    jumps = np.flatnonzero(apart > 1.5 * np.median(apart)) + 1
    return np.insert(times.astype(np.float64), jumps, np.nan), np.insert(values, jumps, np.nan)
