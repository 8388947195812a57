"""The loss over steps as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure  # unlike pyplot it needs no display and keeps no global state
from matplotlib.ticker import MaxNLocator

_LINE, _FAINT, _TEXT = "#2b6cb0", "#a9c7e8", "#333333"


def loss_plot(history: Sequence[Mapping[str, float]]) -> Figure:
    """Loss against step: every step faintly, and their running mean as the line to read.

    Args:
        history: the metrics of every step, with `step` and `loss`, as `Fit` holds them.
    """
    steps = np.array([metrics["step"] for metrics in history])
    losses = np.array([metrics["loss"] for metrics in history])
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.add_subplot()
    width = max(1, len(losses) // 25)
    axes.plot(steps, losses, color=_FAINT, linewidth=1, label="each step")
    if width > 1:
        axes.plot(steps, _running_mean(losses, width), color=_LINE, linewidth=2, label="running mean")
        axes.legend(frameon=False, labelcolor=_TEXT, loc="upper right")
    if np.isfinite(losses).all() and 0 < losses.min() < losses.max() / 20:
        axes.set_yscale("log")
    axes.set(xlabel="step", ylabel="training loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, which="major", color="#e5e7eb", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_TEXT)
    return figure


def _running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """The mean of `width` values around each place; of those there are, at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    starts = np.maximum(places - width // 2, 0)
    ends = np.minimum(places + width // 2 + 1, len(values))
    return (sums[ends] - sums[starts]) / (ends - starts)
