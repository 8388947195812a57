"""Statistics that a run of a Brain collects on the host: spike counts, the latest spikes, outputs, and time."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from outlay.brain.brain import Brain
from outlay.brain.module import MS_PER_S
from outlay.brain.run.feed import below
from outlay.kit import OneLine, counted

RASTER_MS = 2000.0
"""The time at the end of a run for which single spikes are kept; more would not be distinguishable in a plot."""


@dataclass(frozen=True)
class Spikes(OneLine):
    """A list of spikes.

    Attributes:
        times: the times in ms.
        neurons: the neuron of each spike, as its index in the module.
    """

    times: np.ndarray
    neurons: np.ndarray


class Activity:
    """Count spikes during a run.

    Args:
        num_neurons: the number of neurons by port.
        dt: the duration of a step in ms.

    Attributes:
        num_neurons: the number of neurons by port.
        num_steps: the number of steps so far.
    """

    def __init__(self, num_neurons: Mapping[str, int], dt: float) -> None:
        self.num_neurons = dict(num_neurons)
        self.num_steps = 0
        self._dt = dt
        self._counts: dict[str, list[np.ndarray]] = {port: [] for port in num_neurons}
        self._recent: dict[str, collections.deque[tuple[np.ndarray, np.ndarray]]] = {
            port: collections.deque() for port in num_neurons
        }

    def __repr__(self) -> str:
        return f"<Activity of {counted(len(self.num_neurons), 'population')} over {counted(self.num_steps, 'step')}>"

    def add(self, spikes: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Add the spikes of some steps, by port; returns the rate of each port in them, in Hz."""
        rates = {}
        taken = 0
        for port, values in spikes.items():
            spiked = values.reshape(len(values), math.prod(values.shape[1:])) != 0
            counts = spiked.sum(1, dtype=np.int64)
            taken = len(counts)
            self._counts[port].append(counts)
            steps, neurons = np.nonzero(spiked)
            self._recent[port].append((steps + self.num_steps, neurons))
            rates[port] = self._rate(port, counts)
        self.num_steps += taken
        self._forget()
        return rates

    @property
    def names(self) -> dict[str, str]:
        """The name of the population at each port."""
        return population_names(self.num_neurons)

    def counts(self, port: str) -> np.ndarray:
        """Return the number of spikes of a port in each step."""
        return np.concatenate([np.zeros(0, np.int64), *self._counts[port]])

    def rate(self, port: str) -> float:
        """Return the mean rate of a port's neurons over the whole run, in Hz."""
        return self._rate(port, self.counts(port))

    def recent(self, port: str) -> Spikes:
        """Return the spikes of the last two seconds."""
        steps, neurons = self._late(port)
        return Spikes(steps * self._dt, neurons)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the counts as arrays."""
        late = {port: self._late(port) for port in self.num_neurons}
        return {
            **{f"counts/{port}": self.counts(port) for port in self.num_neurons},
            **{f"late_steps/{port}": steps for port, (steps, _) in late.items()},
            **{f"late_neurons/{port}": neurons for port, (_, neurons) in late.items()},
        }

    def continue_from(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the arrays of `to_arrays`."""
        for port in self.num_neurons:
            self._counts[port] = [arrays[f"counts/{port}"]]
            self._recent[port] = collections.deque([(arrays[f"late_steps/{port}"], arrays[f"late_neurons/{port}"])])
            self.num_steps = len(arrays[f"counts/{port}"])

    def _rate(self, port: str, counts: np.ndarray) -> float:
        """Return the mean rate of a port's neurons in some steps, in Hz, from their spikes in each step."""
        return float(counts.mean()) / self.num_neurons[port] * (MS_PER_S / self._dt) if len(counts) else 0.0

    @property
    def _first_kept(self) -> float:
        return self.num_steps - RASTER_MS / self._dt

    def _late(self, port: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the step and the neuron of each kept spike."""
        # The empty arrays give the dtype where there is no chunk yet.
        there = self._recent[port]
        steps = np.concatenate([np.zeros(0, np.int64), *(steps for steps, _ in there)])
        neurons = np.concatenate([np.zeros(0, np.int64), *(neurons for _, neurons in there)])
        late = steps >= self._first_kept
        return steps[late], neurons[late]

    def _forget(self) -> None:
        for there in self._recent.values():
            # Chunks are dropped as a whole; `_late` cuts the oldest that is left.
            while there and (not len(there[0][0]) or there[0][0][-1] < self._first_kept):
                there.popleft()


def population_names(ports: Mapping[str, int]) -> dict[str, str]:
    """Name each port of spikes: by its module, if the module has only one.

    >>> population_names({"A:out_spikes": 5, "B:left": 1, "B:right": 1})
    {'A:out_spikes': 'A', 'B:left': 'B:left', 'B:right': 'B:right'}
    """
    modules = [port.partition(":")[0] for port in ports]
    return {port: module if modules.count(module) == 1 else port for port, module in zip(ports, modules, strict=True)}


_OUTPUTS, _WEIGHTS, _SECONDS = "outputs/", "weights/", "seconds"


class Collected:
    """Collect the results of each chunk of steps; can be saved and continued in another process.

    Args:
        brain: the Brain.
        shapes: the shapes and dtypes of its ports and outputs for some steps, by name.

    Attributes:
        activity: the spike counts.
        weights: a sample of each kernel before the run, by path.
        seconds: the duration of the saved steps.
    """

    def __init__(self, brain: Brain, shapes: Mapping[str, Any]) -> None:
        ports = brain.wiring.output_ports
        kinds = {f"{module}:{port}": about.kind for module, of in ports.items() for port, about in of.items()}
        spikes = {name: int(np.prod(shapes[name].shape[1:])) for name, kind in kinds.items() if kind == "spikes"}
        self.activity = Activity(spikes, brain.dt)
        self.weights: dict[str, np.ndarray] = {}
        self.seconds = 0.0
        self._outputs = {name: [np.zeros((0, *shapes[name].shape[1:]), shapes[name].dtype)] for name in brain.outputs}

    def add(self, written: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Add the values of ports and outputs in some steps, by name; returns the rate of each port in them, in Hz."""
        for name, parts in self._outputs.items():
            parts.append(written[name])
        return self.activity.add({port: written[port] for port in self.activity.num_neurons})

    @property
    def outputs(self) -> dict[str, np.ndarray]:
        """Return the outputs of the Brain by name, one entry per step."""
        return {name: np.concatenate(parts) for name, parts in self._outputs.items()}

    def to_arrays(self, seconds: float) -> dict[str, np.ndarray]:
        """Return the results as arrays.

        Args:
            seconds: the duration of the steps so far.
        """
        return {
            _SECONDS: np.array(seconds),
            **{_OUTPUTS + name: values for name, values in self.outputs.items()},
            **{_WEIGHTS + path: values for path, values in self.weights.items()},
            **self.activity.to_arrays(),
        }

    def continue_from(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the arrays of `to_arrays`."""
        self.seconds = float(arrays[_SECONDS])
        # NumPy files store bfloat16 as raw bytes without the dtype.
        self._outputs = {n: [arrays[_OUTPUTS + n].view(parts[0].dtype)] for n, parts in self._outputs.items()}
        self.weights = below(_WEIGHTS, arrays)
        self.activity.continue_from(arrays)


_NUM_BINS = 200
"""The most points of a line: what a plot of this width can show."""
_SHORTEST_BIN = 5.0
"""The shortest bin in ms; shorter ones say little about the rate of a population."""


def bin_steps(num_steps: int, dt: float) -> int:
    """Return the number of steps per bin."""
    return max(1, round(_SHORTEST_BIN / dt), -(-num_steps // _NUM_BINS))


def binned_rates(counts: np.ndarray, num_neurons: int, dt: float, per_bin: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute the centre of each bin in ms, and the rate in it in Hz; the last bin may be shorter."""
    starts = np.arange(0, len(counts), per_bin)
    if not len(starts):
        return np.zeros(0), np.zeros(0)
    ends = np.minimum(starts + per_bin, len(counts))
    rates = np.add.reduceat(counts, starts) / (ends - starts) / num_neurons * MS_PER_S / dt
    return (starts + ends) / 2 * dt, rates
