"""Runs of a Brain: their configuration, checkpoints, rates, figures and report."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from outlay.analysis import measure_parts
from outlay.brain.run.brain_recipe import BrainRecipe, Chunks
from outlay.brain.run.brain_run import BrainRun, episodes_in_words, real_time
from outlay.brain.run.run_statistics import RASTER_MS, bin_steps, binned_rates
from outlay.brain.run.simulate import check_simulation, simulate
from outlay.errors import CheckpointError
from outlay.graph import GraphLoop
from outlay.kit import (
    RECORDING,
    Prepared,
    RecipeRun,
    RunFolder,
    counted,
    format_seconds,
    is_first,
    picture_bytes,
    png_image,
    processes_of,
    result_not_lost,
    run_page,
)
from outlay.recipes import Result

_RATES = "rates.csv"
_PICTURES = {
    "raster": ("Spikes", "A dot a spike, one band a population"),
    "rates": ("Rates", "Mean rate of each population over time"),
    "potentials": ("Potentials", "The first neurons of each population, relative to rest"),
    "weights": ("Weights", "Before and after the run, on a logarithmic scale"),
    "graph": ("Modules and connections", "What reads what, one step later"),
}
"""The title and caption of each figure, in the order of the report."""
_WIDE = ("raster", "weights", "graph")
"""Figures whose text is too small at half the width of a page."""


class BrainRecipeRun(RecipeRun):
    """Run a `BrainRecipe` by simulating it; see `RecipeRun`."""

    identity = (*RecipeRun.identity, "inputs", "dt", "dtype", "windows", "triggers")
    results = (_RATES, *(f"{name}.png" for name in _PICTURES))
    collects = True
    extras: ClassVar[Mapping[str, str]] = {**RecipeRun.extras, "matplotlib": "brain", "tensorstore": "brain"}

    @property
    def brain_recipe(self) -> BrainRecipe:
        """The recipe, with its type."""
        return cast(BrainRecipe, self.recipe)

    @property
    def step_unit(self) -> int:
        """The number of steps between two recorded steps, or two actions; a run cannot be continued in between."""
        loop = self.brain_recipe.loop
        return loop.steps_per_action if loop else self.recipe.stride

    def config(self) -> dict[str, Any]:
        """Return the digest of the inputs, and what is recorded when."""
        recipe = self.brain_recipe
        return {
            "inputs": recipe.feed.digest(),
            "dt": recipe.brain.dt,
            "dtype": recipe.brain.dtype,
            "windows": [[window.start, window.end] for window in recipe.moments.windows],
            "triggers": [vars(trigger) for trigger in recipe.moments.triggers],
            "chunk": recipe.chunk,
            "kernel": recipe.kernel,
        }

    def check(self) -> None:
        """Raise if the Brain needs too much memory, its inputs end too early, or a window starts after the end."""
        check_simulation(self.prepared, self.num_steps)

    def prepared_for(self, num_steps: int) -> Prepared:
        """Return a program that takes no more steps at once than there are, so that no other is made."""
        recipe = self.brain_recipe
        # A closed loop always takes the steps between two actions.
        if not 0 < num_steps < recipe.chunk or recipe.loop:
            return self.prepared
        shorter = dataclasses.replace(recipe, chunk=num_steps, data=Chunks(recipe.feed, num_steps))
        return dataclasses.replace(self.prepared, recipe=shorter, program=self.program.with_batch(shorter.data[0]))

    def check_saving(self, every: int) -> None:
        """Raise if the environment cannot be saved, or a checkpoint would fall between steps that belong together.

        Raises:
            CheckpointError: the run cannot be saved.
        """
        if self._spans_processes:
            raise CheckpointError(
                "a run in mode placed over several processes cannot be saved: each process has some of the modules\n"
                "  fix: --layout by-neuron, or one process; or leave --checkpoint-every and --resume out"
            )
        loop = self.brain_recipe.loop
        if loop and not loop.can_be_saved:
            raise CheckpointError(
                "a run in a closed loop cannot be saved: nothing says how the state of its environment is saved\n"
                "  fix: ClosedLoop(..., save=lambda environment: {...}, restore=lambda environment, saved: ...), "
                "or leave --checkpoint-every and --resume out"
            )
        if every % self.step_unit:
            between = "two actions of the Brain" if loop else "two of the steps that are recorded"
            fits = -(-every // self.step_unit) * self.step_unit
            raise CheckpointError(
                f"a checkpoint every {every} steps would be between {between}, every {self.step_unit}"
                f"\n  fix: --checkpoint-every {fits}"
            )

    def take_steps(self) -> BrainResult:
        """Simulate, and write rates, figures and the report."""
        folder, dt = self.folder, self.brain_recipe.brain.dt
        done = simulate(
            self.prepared,
            self.num_steps,
            lambda types: self.recorder(types, dt),
            progress=is_first(),
            kept_in=str(folder.path / RECORDING) if self.recipe.record else "",
            saving=self.saving,
            start=self.start,
        )
        result = BrainResult(
            **self.result_facts(done.seconds, tuple(done.recording), len(done.recording.steps)),
            dt=dt,
            rates=done.rates,
            episodes=episodes_in_words(done.episodes),
            modules=self._modules(),
            note=done.note,
        )
        # Every process of a job has the whole result; the first writes for all.
        if is_first():
            with result_not_lost(result):
                self._write(folder, done, result)
        return result

    def _write(self, folder: RunFolder, done: BrainRun, result: BrainResult) -> None:
        """Write rates, figures and the report into the run folder."""
        folder.write(_RATES, _rates_table(done))
        figures = done.figures()
        pictures = [
            png_image(
                _PICTURES[name][0],
                folder.write(f"{name}.png", picture_bytes(figures[name])),
                _caption(name, done),
                is_wide=name in _WIDE,
            )
            for name in _PICTURES
            if name in figures
        ]
        page = run_page(
            result.title,
            result.facts,
            self.program.plan,
            folder.record(),
            table=_populations(done),
            numbers=("neurons", "spikes", "rate (Hz)"),
            pictures=pictures,
        )
        folder.write_report(page)

    @property
    def _spans_processes(self) -> bool:
        """Whether several processes run the modules, each some of them."""
        return bool(self.program.device_groups) and bool(processes_of(self.program.mesh))

    def _modules(self) -> str:
        """Measure the cost of each placed module, which determines whether the placement pays off."""
        if not self.program.device_groups or self.brain_recipe.loop is not None:  # measuring would act on it
            return ""
        if self._spans_processes:  # of which each has some of the modules
            return ""
        loop, device = GraphLoop(self.brain_recipe.brain.graph_of_checked), self.program.mesh.devices.flat[0]
        times = measure_parts(loop, self.recipe.init, self.recipe.data[0], device=device)
        each = ", ".join(f"{name} {format_seconds(spent)}" for name, spent in times.seconds.items())
        return f"{each} a step, measured one by one; {times.bound}"


def _rates_table(run: BrainRun) -> str:
    """Tabulate the rate of each population over time in Hz, one row per bin."""
    dt = run.brain.dt
    per_bin = bin_steps(run.num_steps, dt)
    columns = {
        name: binned_rates(run.activity.counts(port), run.activity.num_neurons[port], dt, per_bin)
        for port, name in run.activity.names.items()
    }
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["time_ms", *columns])
    times = next(iter(columns.values()))[0] if columns else []
    for row, time in enumerate(times):
        writer.writerow([f"{time:g}", *(f"{rates[row]:.3f}" for _, rates in columns.values())])
    return text.getvalue()


def _populations(run: BrainRun) -> list[dict[str, str]]:
    types = {facts.name: facts.type for facts in run.brain.inspect().modules}
    return [
        {
            "population": name,
            "module": types[port.partition(":")[0]],
            "neurons": f"{run.activity.num_neurons[port]:,}",
            "spikes": f"{int(run.activity.counts(port).sum()):,}",
            "rate (Hz)": f"{run.activity.rate(port):.1f}",
        }
        for port, name in run.activity.names.items()
    ]


def _caption(name: str, run: BrainRun) -> str:
    caption = _PICTURES[name][1]
    is_cut = name == "raster" and run.num_steps * run.brain.dt > RASTER_MS
    return f"{caption}; the last {RASTER_MS:g} ms" if is_cut else caption


@dataclass(frozen=True, kw_only=True)
class BrainResult(Result):
    """The result of a Brain's run as a recipe.

    Attributes:
        dt: the duration of a step in ms.
        rates: the rate of each population in Hz.
        episodes: a summary of the closed loop; empty without one.
        modules: the measured time per step of each module, as text; empty if they were not placed.
        note: what to know of the inputs; empty for nothing.
    """

    dt: float
    rates: Mapping[str, float]
    episodes: str
    modules: str
    note: str = ""

    @property
    def shown(self) -> str:
        """Return which inputs were generated."""
        return f"note: {self.note}; --input NAME=FILE or NAME=NUMBER gives one" if self.note else ""

    @property
    def facts(self) -> dict[str, str]:
        """Return the result as text, by name."""
        simulated_ms = self.num_steps * self.dt
        speed = f"{real_time(simulated_ms, self.seconds)}, {1000 * self.seconds / self.num_steps:.3f} ms a step"
        steps = f"{counted(self.num_steps, 'step')} of {self.dt:g} ms{self.continued}"
        facts = {
            "ran": f"{self.recipe}, layout {self.layout}, mode {self.mode}, {self.devices}",
            "simulated": f"{simulated_ms:,g} ms in {steps}",
            "time": f"{self.seconds:.2f} s, {speed}{self.caveat}",
            "rates": ", ".join(f"{name} {rate:.1f}" for name, rate in self.rates.items()) + " Hz" if self.rates else "",
            "recorded": self.recorded_in_words or "nothing",
            "episodes": self.episodes,
            "modules": self.modules,
        }
        return {name: words for name, words in facts.items() if words}
