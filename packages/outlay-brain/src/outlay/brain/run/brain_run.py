"""The result of a Brain's run, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outlay.brain.brain import Brain
from outlay.brain.run.closed_loop import Episode
from outlay.brain.run.run_statistics import RASTER_MS, Activity
from outlay.kit import Facts, Page, Report, counted
from outlay.train import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POTENTIAL = ".potential"


@dataclass(frozen=True)
class BrainRun(Report):
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
        note: what to know of the inputs: which were generated; empty for none.
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
    note: str = ""

    def __getitem__(self, address: str) -> np.ndarray:
        return self.recording[address]

    @property
    def times(self) -> np.ndarray:
        """The start of each recorded step in ms."""
        return self.recording.times

    @property
    def rates(self) -> dict[str, float]:
        """The mean rate of each population over the run, in Hz, by module (by port, where a module has several)."""
        return {name: self.activity.rate(port) for port, name in self.activity.names.items()}

    @property
    def real_time_factor(self) -> float:
        """Simulated time over wall-clock time."""
        return self.num_steps * self.brain.dt / 1000 / self.seconds if self.seconds else float("inf")

    def figures(self) -> dict[str, Figure]:
        """Plot the run; the figures are `graph`, `raster`, `rates`, `potentials` (if recorded) and `weights`."""
        # Matplotlib takes a third of a second to import, and of the processes of a job only the first draws.
        from outlay.brain.picture import draw
        from outlay.brain.run.run_plots import potentials_plot, raster_plot, rates_plot, weights_plot

        drawn = {"graph": draw(self.brain.wiring)}
        names = self.activity.names
        num_neurons = {name: self.activity.num_neurons[port] for port, name in names.items()}
        if names and self.num_steps:
            recent = {name: self.activity.recent(port) for port, name in names.items()}
            end = self.num_steps * self.brain.dt
            spikes = {name: (there.times, there.neurons) for name, there in recent.items()}
            drawn["raster"] = raster_plot(spikes, num_neurons, start=max(0.0, end - RASTER_MS), end=end)
            counts = {name: self.activity.counts(port) for port, name in names.items()}
            drawn["rates"] = rates_plot(counts, num_neurons, self.brain.dt)
        potentials = {address: np.asarray(self[address]) for address in self.recording if address.endswith(POTENTIAL)}
        if potentials and len(self.times):
            drawn["potentials"] = potentials_plot(potentials, self.times, list(num_neurons))
        if self.weights:
            drawn["weights"] = weights_plot(self.weights, list(num_neurons))
        return drawn

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: what `str()` says in words, and the rates."""
        return {"num_steps": self.num_steps, "seconds": self.seconds, "rates": self.rates, "facts": self._facts()}

    def _in_short(self) -> str:
        return ", ".join(f"{name} {words}" for name, words in self._facts().items() if name in ("ran", "time"))

    def _page(self) -> Page:
        return Page("A Brain's run", [Facts(self._facts())])

    def __str__(self) -> str:
        facts = self._facts().items()
        return "\n".join(f"note: {words}" if name == "note" else f"{name:<9} {words}" for name, words in facts)

    def _facts(self) -> dict[str, str]:
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
            "note": self.note,
        }
        return {name: words for name, words in lines.items() if words}


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
