"""What a run of a Brain came to, as facts that print themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from outlay.recipes.brain.progress import real_time


@dataclass(frozen=True)
class BrainResult:
    """One finished run.

    Attributes:
        recipe: the recipe's name.
        layout: the layout's name.
        mode: how it was executed.
        devices: what it ran on, in words.
        simulated: whether the devices were pretended, so that times say nothing about speed.
        num_steps: steps taken.
        dt: the time of a step in ms.
        seconds: what the steps took, without compiling.
        rates: of each population, in Hz.
        recorded: the addresses that were recorded.
        num_rows: recorded steps.
        episodes: what came of a closed loop, in words; empty without one.
        modules: what a step of each module takes, measured, in words; empty where they were not placed.
        folder: the run folder.
    """

    recipe: str
    layout: str
    mode: str
    devices: str
    simulated: bool
    num_steps: int
    dt: float
    seconds: float
    rates: Mapping[str, float]
    recorded: tuple[str, ...]
    num_rows: int
    episodes: str
    modules: str
    folder: str

    @property
    def facts(self) -> dict[str, str]:
        """The result in words, by name, for people."""
        simulated_ms = self.num_steps * self.dt
        speed = f"{real_time(simulated_ms, self.seconds)}, {1000 * self.seconds / self.num_steps:.3f} ms a step"
        honest = " (simulated devices: this is not a speed)" if self.simulated else ""
        recorded = f"{self.num_rows:,} rows of {len(self.recorded)} address(es)" if self.recorded else "nothing"
        facts = {
            "ran": f"{self.recipe}, layout {self.layout}, mode {self.mode}, {self.devices}",
            "simulated": f"{simulated_ms:,g} ms in {self.num_steps:,} steps of {self.dt:g} ms",
            "time": f"{self.seconds:.2f} s, {speed}{honest}",
            "rates": ", ".join(f"{name} {rate:.1f}" for name, rate in self.rates.items()) + " Hz" if self.rates else "",
            "recorded": recorded,
            "episodes": self.episodes,
            "modules": self.modules,
        }
        return {name: words for name, words in facts.items() if words}

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {**asdict(self), "recorded": list(self.recorded)}

    def __str__(self) -> str:
        lines = [f"{name:<9} {words}" for name, words in self.facts.items()]
        return "\n".join([*lines, f"run folder {self.folder}, report {self.folder}/report.html (open it in a browser)"])
