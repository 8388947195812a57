"""Run a Brain's recipe and leave a run folder: recording, rates, pictures, plan and report."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outlay.analysis.parts.measure_parts import measure_parts
from outlay.brain.run.activity import RASTER_MS, population_names
from outlay.brain.run.brain_folder import COLLECTED, BrainFolder
from outlay.brain.run.brain_recipe import BrainRecipe
from outlay.brain.run.brain_run import BrainRun, episodes_in_words, real_time
from outlay.brain.run.recording.disk import ZarrRecorder
from outlay.brain.run.recording.recording import Recording
from outlay.brain.run.simulate import simulate
from outlay.core.error_types import CheckpointError
from outlay.core.quantities import counted, format_seconds
from outlay.core.runtime_flags import versions
from outlay.graph.graph_loop import GraphLoop
from outlay.layout.plan import Plan
from outlay.recipes.earlier_run import arrangements, refuse_before_beginning, refuse_other_run, refuse_past_the_end
from outlay.recipes.prepare import Prepared
from outlay.recipes.result import result_not_lost
from outlay.report.run_page import Picture, run_page
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.run_folder import RunFolder
from outlay.train.saving import Saving
from outlay.train.together import is_first


def run(
    prepared: Prepared, folder: RunFolder, *, steps: int | None = None, checkpoint_every: int | None = None
) -> BrainResult:
    """Run a prepared `BrainRecipe` and fill its run folder. Progress goes to stderr.

    Args:
        prepared: the recipe with its program.
        folder: the run folder.
        steps: how many steps; the recipe's own number if None.
        checkpoint_every: save a checkpoint after so many steps, and after the last; as the earlier run did if None,
            and none at all in a new run.

    Raises:
        BrainStopped: inputs or state are not finite; the recording so far is in the folder.
        Interrupted: on Ctrl-C; likewise.
        CheckpointError: a run of this recipe cannot be saved, or the earlier run cannot be continued.
        RunFolderError: the folder cannot be written to; after the last step it is `ResultNotWritten`.
    """
    recipe, program, earlier = prepared.recipe, prepared.program, folder.earlier or {}
    assert isinstance(recipe, BrainRecipe)
    if steps is None:
        steps = int(earlier.get("num_steps", recipe.steps))
    if checkpoint_every is None:
        checkpoint_every = earlier.get("checkpoint_every")
    config = _config(prepared, recipe, steps, checkpoint_every, earlier)
    saving = _saving(recipe, folder, checkpoint_every) if checkpoint_every else None
    start = None
    if folder.earlier is not None:
        refuse_other_run(folder, config, _IDENTITY)
        start = saving.restore(program) if saving else None
        refuse_past_the_end(folder, start.step if start else 0, steps)
    refuse_before_beginning(program, folder, saves=saving is not None)
    folder.write_config(config)
    folder.write_plan(program.plan)
    its = BrainFolder(folder, goes_on=start is not None, records=bool(recipe.record), saves=saving is not None)

    def recorder_of(rows: Any) -> ZarrRecorder | _Unwritten:
        if not (rows and is_first()):
            return _Unwritten(recipe)
        return ZarrRecorder(its.recording_path, rows, recipe.brain.dt, after=start.step if start else None)

    done = simulate(
        prepared,
        steps,
        recorder_of,
        progress=is_first(),
        kept_in=str(its.recording_path) if recipe.record else "",
        saving=saving,
        start=start,
    )
    result = _result(prepared, done, folder)
    if is_first():
        with result_not_lost(result):
            its.write_rates(done)
            pictures = its.write_figures(done.figures())
            folder.write_report(report_page(result, done, program.plan, pictures))
    return result


def _saving(recipe: BrainRecipe, folder: RunFolder, every: int) -> Saving:
    """How a run of a recipe is saved.

    Raises:
        CheckpointError: runs of the recipe cannot be saved, or not every so many steps.
    """
    if recipe.loop is not None:
        raise CheckpointError(
            "a run in a closed loop saves no checkpoints: the state of its environment cannot be saved\n"
            "  fix: leave --checkpoint-every and --resume out"
        )
    if recipe.moments.triggers:
        raise CheckpointError(
            "a run that records around events saves no checkpoints: what waits for an event would be lost\n"
            "  fix: leave --checkpoint-every and --resume out, or record windows of time, or all, with a stride"
        )
    if every % recipe.stride:
        fits = -(-every // recipe.stride) * recipe.stride
        raise CheckpointError(
            f"a checkpoint every {every} steps would be between two of the steps that are recorded, every "
            f"{recipe.stride}\n  fix: --checkpoint-every {fits}"
        )
    checkpoints = Checkpoints(folder.checkpoints_path)
    return Saving(checkpoints, every, collected=folder.path / COLLECTED, stride=recipe.stride)


class _Unwritten:
    """The recorder of a run without a recording, and of all processes but the first."""

    def __init__(self, recipe: BrainRecipe) -> None:
        self._dt = recipe.brain.dt

    def append(self, steps: np.ndarray, rows: Mapping[str, np.ndarray]) -> None:
        """Nothing is kept."""

    def recording(self) -> Recording:
        """An empty one."""
        return Recording(np.zeros(0, np.int64), self._dt, {})


def _result(prepared: Prepared, done: BrainRun, folder: RunFolder) -> BrainResult:
    mesh = prepared.program.plan.mesh
    return BrainResult(
        recipe=prepared.recipe.name,
        layout=prepared.layout_name,
        mode=prepared.program.mode,
        devices=str(mesh),
        simulated=mesh.kind == "simulated",
        num_steps=done.num_steps,
        dt=done.brain.dt,
        seconds=done.seconds,
        rates=done.rates,
        recorded=tuple(done.recording),
        num_rows=len(done.recording.steps),
        episodes=episodes_in_words(done.episodes),
        modules=_modules(prepared),
        folder=str(folder.path),
    )


def _modules(prepared: Prepared) -> str:
    """What each module costs where they were placed: it is what a placement stands or falls with."""
    recipe, program = prepared.recipe, prepared.program
    assert isinstance(recipe, BrainRecipe)
    if not program.device_groups or recipe.loop is not None:  # an environment would go on
        return ""
    graph_loop = GraphLoop(recipe.brain.graph)
    times = measure_parts(graph_loop, recipe.init, recipe.data[0], device=program.mesh.devices.flat[0])
    each = ", ".join(f"{name} {format_seconds(spent)}" for name, spent in times.seconds.items())
    return f"{each} a step, measured one by one; {times.bound}"


_IDENTITY = ("recipe", "seed", "inputs", "dt", "dtype", "record", "stride", "windows")
"""What must stay as it was, or the recording would go on with something else."""


def _config(
    prepared: Prepared,
    recipe: BrainRecipe,
    steps: int,
    checkpoint_every: int | None,
    earlier: Mapping[str, Any],
) -> dict[str, Any]:
    program = prepared.program
    return {
        "recipe": recipe.name,
        "layout": prepared.layout_name,
        "mode": program.mode,
        "rules": [str(rule) for rule in program.layout],
        "mesh": program.plan.mesh.to_dict(),
        "num_steps": steps,
        "checkpoint_every": checkpoint_every,
        "inputs": recipe.feed.digest(),
        "dt": recipe.brain.dt,
        "dtype": recipe.brain.dtype,
        "seed": recipe.seed,
        "record": list(recipe.record),
        "stride": recipe.stride,
        "windows": [[window.start, window.end] for window in recipe.moments.windows],
        "triggers": [vars(trigger) for trigger in recipe.moments.triggers],
        "chunk": recipe.chunk,
        "versions": {"python": platform.python_version(), **versions(("outlay", "jax", "jaxlib"))},
        "before": arrangements(earlier),
    }


_TITLES = {
    "raster": ("Spikes", "A dot a spike, one band a population"),
    "rates": ("Rates", "Mean rate of each population over time"),
    "potentials": ("Potentials", "The first neurons of each population, relative to rest"),
    "weights": ("Weights", "Before and after the run, on a logarithmic scale"),
    "graph": ("Modules and connections", "What reads what, one step later"),
}

_WIDE = ("graph",)
"""Pictures with text too small for half a page."""


def report_page(result: BrainResult, run: BrainRun, plan: Plan, pictures: Mapping[str, Path]) -> str:
    """The page of a run.

    Args:
        result: what the run came to.
        run: the run.
        plan: where every array lived.
        pictures: PNG files by name.
    """
    return run_page(
        f"{result.recipe} under {result.layout}",
        result.facts,
        plan,
        table=_populations(run),
        numbers=("neurons", "spikes", "rate (Hz)"),
        pictures=[
            Picture(_TITLES[name][0], path, _caption(name, run), is_wide=name in _WIDE)
            for name, path in pictures.items()
        ],
    )


def _populations(run: BrainRun) -> list[dict[str, str]]:
    names = population_names(run.activity.num_neurons)
    types = {facts.name: facts.type for facts in run.brain.inspect().modules}
    return [
        {
            "population": name,
            "module": types[port.partition(":")[0]],
            "neurons": f"{run.activity.num_neurons[port]:,}",
            "spikes": f"{int(run.activity.counts(port).sum()):,}",
            "rate (Hz)": f"{run.activity.rate(port):.1f}",
        }
        for port, name in names.items()
    ]


def _caption(name: str, run: BrainRun) -> str:
    caption = _TITLES[name][1]
    is_cut = name == "raster" and run.num_steps * run.brain.dt > RASTER_MS
    return f"{caption}; the last {RASTER_MS:g} ms" if is_cut else caption


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
        recorded = (
            f"{counted(self.num_rows, 'row')} of {counted(len(self.recorded), 'address', 'addresses')}"
            if self.recorded
            else "nothing"
        )
        facts = {
            "ran": f"{self.recipe}, layout {self.layout}, mode {self.mode}, {self.devices}",
            "simulated": f"{simulated_ms:,g} ms in {counted(self.num_steps, 'step')} of {self.dt:g} ms",
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
