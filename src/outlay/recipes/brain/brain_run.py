"""What a run of a Brain came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from outlay.brain.brain import Brain
from outlay.recipes.brain.activity import Activity, population_names
from outlay.recipes.brain.inputs.closed_loop import Episode
from outlay.recipes.brain.progress import real_time
from outlay.recipes.brain.recording.recording import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class BrainRun:
    """A run of a Brain; `run["A_ex:out_spikes"]` is what was recorded at an address.

    Attributes:
        brain: the Brain.
        num_steps: steps that were taken.
        recording: what was recorded, and of which steps.
        outputs: the Brain's outputs by name, one entry a step.
        activity: how much spiked.
        state: the state after the last step, where the layout puts it. `run_brain(state=run.state)` goes on from it.
        weights: some numbers of each kernel, before and after the run, by path.
        seconds: what the steps took, without compiling.
        episodes: those that ended in a closed loop.
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
        """The time of each recorded row in ms."""
        return self.recording.times

    @property
    def rates(self) -> dict[str, float]:
        """The mean rate of each population over the run, in Hz, by module (by port, where a module has several)."""
        return {name: self.activity.rate(port) for port, name in population_names(self.activity.num_neurons).items()}

    @property
    def real_time_factor(self) -> float:
        """Simulated time over the time it took."""
        return self.num_steps * self.brain.dt / 1000 / self.seconds if self.seconds else float("inf")

    def figures(self) -> dict[str, Figure]:
        """Pictures of the run by name: `raster`, `rates`, `potentials` (if recorded), `weights`, `graph`."""
        from outlay.recipes.brain.figures import figures

        return figures(self)

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {rate:.1f}" for name, rate in self.rates.items())
        recorded = f"{len(self.recording.steps):,} rows of {len(self.recording)} address(es)" if self.recording else ""
        simulated = self.num_steps * self.brain.dt
        lines = {
            "ran": f"{self.num_steps:,} steps of {self.brain.dt:g} ms",
            "time": f"{self.seconds:.2f} s, {real_time(simulated, self.seconds)}",
            "rates": f"{rates} Hz" if rates else "",
            "recorded": recorded,
            "episodes": episodes_in_words(self.episodes),
        }
        return "\n".join(f"{name:<9} {words}" for name, words in lines.items() if words)


def episodes_in_words(episodes: Sequence[Episode]) -> str:
    """How many there were and what they earned; empty for none."""
    if not episodes:
        return ""
    rewards = [episode.reward for episode in episodes]
    tenth = max(1, len(rewards) // 10)
    return (
        f"{len(rewards)}, mean reward {np.mean(rewards):.1f}, "
        f"{np.mean(rewards[:tenth]):.1f} at first, {np.mean(rewards[-tenth:]):.1f} at last"
    )
