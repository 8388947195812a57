"""Histograms of kernels, before and after a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from outlay.brain.plots.figure import ShownFigure
from outlay.brain.plots.style import TEXT, colour, number_of, tidy

_NUM_BINS = 60
_COLUMNS = 2


def weights_plot(weights: Mapping[str, tuple[np.ndarray, np.ndarray]], populations: Sequence[str] = ()) -> Figure:
    """One panel a kernel; how many synapses have which weight. The numbers are counted on a scale of logarithms.

    Args:
        weights: by path, the weights before and after.
        populations: names in the order of their colours.

    Example:
        >>> figure = weights_plot({"A.synapses.kernel": (np.zeros(5), np.ones(5))})
        >>> figure.axes[0].get_title(loc="left")
        'A.synapses.kernel'
    """
    rows = -(-max(1, len(weights)) // _COLUMNS)
    figure = ShownFigure(figsize=(9, 0.4 + 2.4 * rows), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).reshape(-1)
    for axes, (path, (before, after)) in zip(panels, weights.items(), strict=False):
        both = np.concatenate([before, after])
        both = both[np.isfinite(both)]
        low, high = (both.min(), both.max()) if both.size else (0.0, 1.0)
        edges = np.linspace(low, high if high > low else low + 1, _NUM_BINS + 1)
        axes.hist(before, edges, color="#c3c9d4", label="before")
        axes.hist(
            after, edges, color=colour(number_of(path, populations)), histtype="step", linewidth=1.6, label="after"
        )
        axes.set_yscale("log")
        axes.set_title(path, fontsize=10, color=TEXT, loc="left")
        axes.set(xlabel="weight", ylabel="synapses")
        axes.legend(frameon=False, labelcolor=TEXT, fontsize=9, loc="upper right")
        tidy(axes)
    for axes in panels[len(weights) :]:
        axes.set_visible(False)
    return figure
