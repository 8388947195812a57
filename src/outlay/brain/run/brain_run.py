"""The result of a Brain's run, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from outlay.brain.brain import Brain
from outlay.brain.picture import draw
from outlay.brain.plots import TEXT, ShownFigure, colour, number_of, rates_plot, tidy
from outlay.brain.run.closed_loop import Episode
from outlay.brain.run.run_statistics import RASTER_MS, Activity, population_names
from outlay.core.quantities import counted
from outlay.train.recording import Recording


@dataclass(frozen=True)
class BrainRun:
    """The result of a run; `run["A_ex:out_spikes"]` is the recording of an address.

    Attributes:
        brain: the Brain.
        num_steps: the number of steps.
        recording: the recorded arrays, and their steps.
        outputs: the Brain's outputs by name, one entry per step.
        activity: the spike counts.
        state: the state after the last step, in its layout. Continue from it with `run_brain(state=run.state)`.
        weights: a sample of each kernel before and after the run, by path.
        seconds: the duration of the steps, without compiling.
        episodes: the finished episodes of a closed loop.
    """

    brain: Brain
    num_steps: int
    recording: Recording
    outputs: Mapping[str, np.ndarray]
    activity: Activity
    state: Any
    weights: Mapping[str, tuple[np.ndarray, np.ndarray]]
    seconds: float
    episodes: Sequence[Episode] = ()

    def __getitem__(self, address: str) -> np.ndarray:
        return self.recording[address]

    @property
    def times(self) -> np.ndarray:
        """The start of each recorded step in ms."""
        return self.recording.times

    @property
    def rates(self) -> dict[str, float]:
        """The mean rate of each population over the run, in Hz, by module (by port, where a module has several)."""
        return {name: self.activity.rate(port) for port, name in population_names(self.activity.num_neurons).items()}

    @property
    def real_time_factor(self) -> float:
        """Simulated time over wall-clock time."""
        return self.num_steps * self.brain.dt / 1000 / self.seconds if self.seconds else float("inf")

    def figures(self) -> dict[str, Figure]:
        """Plot the run; the figures are `raster`, `rates`, `potentials` (if recorded), `weights` and `graph`."""
        return figures(self)

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {rate:.1f}" for name, rate in self.rates.items())
        recorded = (
            f"{counted(len(self.recording.steps), 'row')} of {counted(len(self.recording), 'address', 'addresses')}"
            if self.recording
            else ""
        )
        simulated = self.num_steps * self.brain.dt
        lines = {
            "ran": f"{counted(self.num_steps, 'step')} of {self.brain.dt:g} ms",
            "time": f"{self.seconds:.2f} s, {real_time(simulated, self.seconds)}",
            "rates": f"{rates} Hz" if rates else "",
            "recorded": recorded,
            "episodes": episodes_in_words(self.episodes),
        }
        return "\n".join(f"{name:<9} {words}" for name, words in lines.items() if words)


def real_time(simulated_ms: float, seconds: float) -> str:
    """Write the ratio of simulated to wall-clock time.

    >>> real_time(1000.0, 0.25), real_time(10.0, 1.0)
    ('4.0x real time', '0.01x real time')
    """
    factor = simulated_ms / 1000 / seconds if seconds else float("inf")
    return f"{factor:.1f}x real time" if factor >= 1 else f"{factor:.2g}x real time"


def episodes_in_words(episodes: Sequence[Episode]) -> str:
    """Summarize the number and the rewards of episodes; empty for none."""
    if not episodes:
        return ""
    rewards = [episode.reward for episode in episodes]
    tenth = max(1, len(rewards) // 10)
    return (
        f"{len(rewards)}, mean reward {np.mean(rewards):.1f}, "
        f"{np.mean(rewards[:tenth]):.1f} at first, {np.mean(rewards[-tenth:]):.1f} at last"
    )


POTENTIAL = ".potential"


def figures(run: BrainRun) -> dict[str, Figure]:
    """Make all figures by name; omit those without data.

    Args:
        run: a finished run.
    """
    drawn = {"graph": draw(run.brain.wiring)}
    names = population_names(run.activity.num_neurons)
    num_neurons = {name: run.activity.num_neurons[port] for port, name in names.items()}
    if names and run.num_steps:
        recent = {name: run.activity.recent(port) for port, name in names.items()}
        end = run.num_steps * run.brain.dt
        spikes = {name: (there.times, there.neurons) for name, there in recent.items()}
        drawn["raster"] = raster_plot(spikes, num_neurons, start=max(0.0, end - RASTER_MS), end=end)
        counts = {name: run.activity.counts(port) for port, name in names.items()}
        drawn["rates"] = rates_plot(counts, num_neurons, run.brain.dt)
    potentials = {address: np.asarray(run[address]) for address in run.recording if address.endswith(POTENTIAL)}
    if potentials and len(run.times):
        drawn["potentials"] = potentials_plot(potentials, run.times, list(num_neurons))
    if run.weights:
        drawn["weights"] = weights_plot(run.weights, list(num_neurons))
    return drawn


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
        axes.legend(frameon=False, labelcolor=TEXT, fontsize=9, loc="upper right")
        tidy(axes)
    for axes in panels[len(weights) :]:
        axes.set_visible(False)
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
