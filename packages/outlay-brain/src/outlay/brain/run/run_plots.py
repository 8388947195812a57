"""The plots of a Brain's run: rates, weights, potentials and spikes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from outlay.brain.picture import TEXT, ShownFigure, colour, number_of, tidy
from outlay.brain.run.run_statistics import bin_steps, binned_rates

_HALF = 6.5
"""The width, in inches, of a figure whose text is read at half the width of a page; others are 9 wide."""


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
    figure = ShownFigure(figsize=(_HALF, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, steps) in enumerate(counts.items()):
        per_bin = bin_steps(len(steps), dt)
        times, rates = binned_rates(steps, num_neurons[name], dt, per_bin)
        # Populations that fire alike cover one another: dashes let those below be seen.
        style = (number * 4, (8, 4)) if number else "solid"
        axes.plot(times, rates, color=colour(number), linewidth=1.4, linestyle=style, label=name)
    axes.set(xlabel="time (ms)", ylabel="rate (Hz)")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    if counts:
        axes.legend(frameon=False, labelcolor=TEXT, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    tidy(axes)
    return figure


_NUM_BINS = 60
_COLUMNS = 2


def weights_plot(weights: Mapping[str, tuple[np.ndarray, np.ndarray]], populations: Sequence[str] = ()) -> Figure:
    """Plot a histogram of the weights of each kernel, with logarithmic counts.

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
        tidy(axes)
    for axes in panels[len(weights) :]:
        axes.set_visible(False)
    if weights:  # one for all panels, above them: inside it would lie on bars
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, labelcolor=TEXT, fontsize=9, loc="outside upper right", ncols=2)
    return figure


_NUM_NEURONS = 4
"""The most lines in a panel that a reader can follow."""


def potentials_plot(potentials: Mapping[str, np.ndarray], times: np.ndarray, populations: Sequence[str] = ()) -> Figure:
    """Plot the first neurons of each recorded leaf, one panel per leaf.

    Args:
        potentials: by address, (rows, neurons), in mV relative to rest.
        times: the time of each row, in ms.
        populations: names in the order of their colours.

    Example:
        >>> figure = potentials_plot({"A.soma.potential": np.zeros((10, 3))}, np.arange(10))
        >>> len(figure.axes[0].lines)
        3
    """
    figure = ShownFigure(figsize=(_HALF, 0.8 + max(1, len(potentials))), layout="constrained")
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
    """Break a line where nothing was recorded."""
    if len(times) < 3:
        return times, values
    apart = np.diff(times)
    jumps = np.flatnonzero(apart > 1.5 * np.median(apart)) + 1
    return np.insert(times.astype(np.float64), jumps, np.nan), np.insert(values, jumps, np.nan)


_MOST_DOTS = 200_000
"""The most dots of a raster; more would only overlap, and make the file larger."""


def raster_plot(
    spikes: Mapping[str, tuple[np.ndarray, np.ndarray]], num_neurons: Mapping[str, int], *, start: float, end: float
) -> Figure:
    """Plot a spike raster with one band per population, as high as its number of neurons, the first at the top.

    Args:
        spikes: the times of the spikes in ms and their neurons, by population.
        num_neurons: the number of neurons of each population.
        start: the start of the time axis in ms.
        end: the end of the time axis in ms.

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
            rasterized=True,  # as paths, so many dots make a vector file of megabytes
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
