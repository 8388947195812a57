"""Run a Brain's recipe and leave a run folder: recording, rates, pictures, plan and report."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np

from outlay.core.versions import versions
from outlay.execute.rollout import Rollout
from outlay.recipes.brain.brain_recipe import BrainRecipe
from outlay.recipes.brain.brain_run import BrainRun, episodes_in_words
from outlay.recipes.brain.recording.disk import ZarrRecorder
from outlay.recipes.brain.recording.recording import Recording
from outlay.recipes.brain.report_page import report_page
from outlay.recipes.brain.result import BrainResult
from outlay.recipes.brain.run_folder import BrainFolder
from outlay.recipes.brain.saves import Saves
from outlay.recipes.brain.simulate import simulate
from outlay.recipes.earlier_run import arrangements, refuse_before_beginning, refuse_other_run, refuse_past_the_end
from outlay.recipes.prepare import Prepared
from outlay.recipes.result import result_not_lost
from outlay.report.estimate.render import format_seconds
from outlay.report.placed.measure import measure_parts
from outlay.train.run_folder import RunFolder
from outlay.train.together import is_first


def run(
    prepared: Prepared, folder: RunFolder, *, num_steps: int | None = None, checkpoint_every: int | None = None
) -> BrainResult:
    """Run a prepared `BrainRecipe` and fill its run folder. Progress goes to stderr.

    Args:
        prepared: the recipe with its program.
        folder: the run folder.
        num_steps: how many steps; the recipe's own number if None.
        checkpoint_every: save a checkpoint after so many steps, and after the last; as the earlier run did if None,
            and none at all in a new run.

    Raises:
        BrainStopped: inputs or state are not finite; the recording so far is in the folder.
        BrainInterrupted: on Ctrl-C; likewise.
        CheckpointError: a run of this recipe cannot be saved, or the earlier run cannot be continued.
        RunFolderError: the folder cannot be written to; after the last step it is `ResultNotWritten`.
    """
    recipe, program, earlier = prepared.recipe, prepared.program, folder.earlier or {}
    assert isinstance(recipe, BrainRecipe)
    if num_steps is None:
        num_steps = int(earlier.get("num_steps", recipe.num_steps))
    if checkpoint_every is None:
        checkpoint_every = earlier.get("checkpoint_every")
    config = _config(prepared, recipe, num_steps, checkpoint_every, earlier)
    saves = Saves(recipe, folder, checkpoint_every) if checkpoint_every else None
    start = None
    if folder.earlier is not None:
        refuse_other_run(folder, config, _IDENTITY)
        start = saves.restore(program) if saves else None
        refuse_past_the_end(folder, start.step if start else 0, num_steps)
    refuse_before_beginning(program, folder, saves=saves is not None)
    folder.write_config(config)
    folder.write_plan(program.plan)
    its = BrainFolder(folder, goes_on=start is not None, records=bool(recipe.record), saves=saves is not None)

    def recorder_of(rows: Any) -> ZarrRecorder | _Unwritten:
        if not (rows and is_first()):
            return _Unwritten(recipe)
        return ZarrRecorder(its.recording_path, rows, recipe.brain.dt, after=start.step if start else None)

    done = simulate(
        prepared,
        num_steps,
        recorder_of,
        progress=is_first(),
        kept_in=str(its.recording_path) if recipe.record else "",
        saves=saves,
        start=start,
    )
    result = _result(prepared, done, folder)
    if is_first():
        with result_not_lost(result):
            its.write_rates(done)
            pictures = its.write_figures(done.figures())
            folder.write_report(report_page(result, done, program.plan, pictures))
    return result


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
    if program.mode != "placed" or recipe.loop is not None:  # an environment would go on
        return ""
    rollout = Rollout(recipe.brain.graph)
    times = measure_parts(rollout, recipe.init, recipe.data[0], device=program.mesh.devices.flat[0])
    each = ", ".join(f"{name} {format_seconds(spent)}" for name, spent in times.seconds.items())
    return f"{each} a step, measured one by one; {times.bound}"


_IDENTITY = ("recipe", "seed", "inputs", "dt", "dtype", "record", "stride", "windows")
"""What must stay as it was, or the recording would go on with something else."""


def _config(
    prepared: Prepared,
    recipe: BrainRecipe,
    num_steps: int,
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
        "num_steps": num_steps,
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
