"""Run a recipe: train, evaluate, and leave a run folder that tells all of it."""

from __future__ import annotations

import os
import platform
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.core.error_types import RecipeError
from outlay.core.runtime_flags import versions
from outlay.core.user_code import users_traceback
from outlay.program.program import Program
from outlay.recipes.earlier_run import arrangements, refuse_before_beginning, refuse_other_run, refuse_past_the_end
from outlay.recipes.find import find_recipe
from outlay.recipes.plugins import load
from outlay.recipes.prepare import Prepared, prepare
from outlay.recipes.recipe import Recipe
from outlay.recipes.result import Result, RunResult, result_not_lost
from outlay.report.run_page import Picture, run_page
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.contract import refuse_unrecordable
from outlay.train.data import TrainData, num_of
from outlay.train.loop import Data, fit
from outlay.train.metrics_file import as_numbers
from outlay.train.run_folder import RunFolder
from outlay.train.together import is_first


def run(
    recipe: Recipe | str,
    *,
    layout: str | None = None,
    mesh: str | Mesh | None = None,
    mode: str | None = None,
    steps: int | None = None,
    run_folder: Path | str | None = None,
    force: bool = False,
    resume: bool = False,
    checkpoint_every: int | None = None,
) -> Result:
    """Run a recipe and leave a run folder, as `outlay run` does. Progress goes to stderr.

    Args:
        recipe: the recipe, or what names one on the command line: `digits`, `path/to/file.py:function`.
        layout: the name of one of its layouts, or a TOML file; its default if None.
        mesh: a mesh, or one as text such as `data=4,model=2`; the one that goes with the layout if None.
        mode: `auto`, `manual` or `placed`; the one that goes with the layout if None.
        steps: steps to take in all; the recipe's own number, or the earlier run's, if None.
        run_folder: where config, plan, metrics, checkpoints, picture and report go; `runs/NAME` if None.
        force: replace the run that is in the folder.
        resume: go on after the newest checkpoint of the run that is in the folder, if there is one.
        checkpoint_every: save a checkpoint after so many steps, and after the last.

    Raises:
        RecipeError: there is no such recipe or layout, or what follows its last step failed.
        RunFolderError: the folder holds something else, or cannot be written to.
        Interrupted: on Ctrl-C; what was saved so far is in the folder.

    Example:
        >>> result = outlay.run("digits", layout="fsdp", steps=2, run_folder="runs/two_steps", force=True)
        >>> result.to_dict()["num_steps"]
        2
    """
    if force and resume:
        raise RecipeError(
            "with force=True the run that resume=True would continue is replaced\n  fix: give one of them"
        )
    ready = find_recipe(recipe) if isinstance(recipe, str) else recipe
    prepared = prepare(ready, layout=layout, mesh=mesh, mode=mode)
    path = own_folder_of(ready.name) if run_folder is None else Path(run_folder)
    folder = RunFolder(path, force=force, resume=resume)
    return run_prepared(prepared, folder, steps=steps, checkpoint_every=checkpoint_every)


def own_folder_of(name: str) -> Path:
    """The run folder of a recipe that is given none, `runs/NAME`; a name is text, and no path.

    Raises:
        RecipeError: the name cannot be that of a folder.
    """
    if name in (".", "..") or not name.isprintable() or set(name) & set("/\\") or len(os.fsencode(name)) > 200:
        raise RecipeError(
            f"the recipe is called {name[:60]!r}, which cannot be the name of a folder\n  fix: name a run folder"
        )
    return Path("runs") / name


def run_prepared(
    prepared: Prepared, folder: RunFolder, *, steps: int | None = None, checkpoint_every: int | None = None
) -> Result:
    """Train a prepared recipe, or run it in its own way; evaluate it, and fill its run folder. Progress goes to stderr.

    A folder that holds an earlier run of the recipe, opened with `resume`, is continued after its newest checkpoint.

    Args:
        prepared: the recipe with its program.
        folder: where config, plan, metrics, checkpoints, picture and report go.
        steps: how many steps in all; those of the earlier run, or else the recipe's own number, if None.
        checkpoint_every: save a checkpoint after so many steps, and after the last; as the earlier run did if None,
            and none at all in a new run.

    Raises:
        Interrupted: on Ctrl-C; config, plan, checkpoints and the metrics so far are in the folder.
        CheckpointError: the earlier run cannot be continued.
        RunFolderError: the folder cannot be written to. Where that shows after the last step it is `ResultNotWritten`,
            which has the result.
    """
    try:
        if runner := prepared.recipe.runner:
            return load(runner)(prepared, folder, steps=steps, checkpoint_every=checkpoint_every)
        return _train(prepared, folder, steps, checkpoint_every)
    finally:
        folder.close()


def _train(prepared: Prepared, folder: RunFolder, steps: int | None, checkpoint_every: int | None) -> RunResult:
    recipe, program, earlier = prepared.recipe, prepared.program, folder.earlier or {}
    if steps is None:
        steps = int(earlier.get("num_steps", recipe.steps))
    if checkpoint_every is None:
        checkpoint_every = earlier.get("checkpoint_every")
    config = _config(prepared, steps, checkpoint_every, earlier)
    checkpoints = Checkpoints(folder.checkpoints_path) if checkpoint_every else None
    start = None
    if folder.earlier is not None:
        are_counted = config["examples"] and folder.earlier.get("examples")  # not where data are the user's own class
        refuse_other_run(folder, config, (*_IDENTITY, "examples") if are_counted else _IDENTITY)
        start = _restored(checkpoints, program)
        refuse_past_the_end(folder, start[0] if start else 0, steps)
    refuse_unrecordable(program.lowered.out_info[1])
    refuse_before_beginning(program, folder, saves=checkpoints is not None)
    folder.write_config(config)
    folder.write_plan(program.plan)
    resumed_after = start[0] if start else 0
    if start is None and recipe.begin is not None:
        start = (0, recipe.begin(program, program.init(jax.random.key(recipe.seed))))
    done = fit(
        program,
        _data(recipe, program),
        steps=steps,
        key=jax.random.key(recipe.seed),
        metrics_path=folder.metrics_path,
        progress=is_first(),
        checkpoints=checkpoints,
        checkpoint_every=checkpoint_every,
        start=start,
    )
    problems: list[str] = []
    held_out = _held_out(recipe, program, done.state, problems)
    sample = _sample(recipe, program, done.state, problems)
    mesh = program.plan.mesh
    result = RunResult(
        recipe=recipe.name,
        layout=prepared.layout_name,
        devices=str(mesh),
        simulated=mesh.kind == "simulated",
        num_steps=steps,
        resumed_after=resumed_after,
        seconds=done.seconds,
        num_samples=done.num_samples,
        training=done.history[-1] if done.history else {},
        held_out=held_out,
        sample=sample,
        folder=str(folder.path),
    )
    with result_not_lost(result):
        if result.sample:
            folder.write_sample(result.sample)
        if is_first():
            picture = folder.write_loss(done.history) if "loss" in done.history[0] else None
            beside = Picture("Training loss over steps", picture) if picture else None
            title = f"{result.recipe} under {result.layout}"
            folder.write_report(run_page(title, result.facts, program.plan, beside=beside, sample=result.sample))
    if problems:
        saved = (
            f"the state after step {steps} is in {folder.checkpoints_path}"
            if checkpoints
            else "its state was not saved: --checkpoint-every N saves it before they are called"
        )
        done_well = f"the training itself is done, and its metrics, plan and report are in {folder.path}; {saved}"
        raise RecipeError("\n".join([f"what follows the last step of {recipe.name!r} failed", *problems, done_well]))
    return result


def _data(recipe: Recipe, program: Program) -> Data:
    """The recipe's batches; of several processes, each reads its own part of them where the data can do that."""
    if isinstance(recipe.data, TrainData) and jax.process_count() > 1:
        return recipe.data.on(program)
    return recipe.data


def _held_out(recipe: Recipe, program: Program, state: Any, problems: list[str]) -> dict[str, float]:
    """What `evaluate` gives; nothing, and a problem more, where it fails: training must not be lost for it."""
    if recipe.evaluate is None:
        return {}
    try:
        found = recipe.evaluate(program, state)
        return {name: as_numbers(value) for name, value in found.items()}
    except Exception as error:
        problems.append(_failed(recipe.evaluate, "evaluate", "a dictionary of numbers", error))
        return {}


def _sample(recipe: Recipe, program: Program, state: Any, problems: list[str]) -> str:
    if recipe.sample is None:
        return ""
    try:
        found = recipe.sample(program, state)
        if isinstance(found, str):
            return found
        raise TypeError(f"it returned a {type(found).__name__}: {found!r:.60}")
    except Exception as error:
        problems.append(_failed(recipe.sample, "sample", "a text", error))
        return ""


def _failed(function: Callable[..., Any], name: str, returns: str, error: Exception) -> str:
    told = users_traceback(error) or f"{type(error).__name__}: {error}"
    where = getattr(function, "__qualname__", repr(function))
    return f"  {name} ({where}), which is to return {returns}:\n{textwrap.indent(told, '    ')}"


_IDENTITY = ("recipe", "seed", "batch")
"""What must stay as it was, or another sequence of batches or losses would follow."""


def _config(prepared: Prepared, steps: int, checkpoint_every: int | None, earlier: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "recipe": prepared.recipe.name,
        "layout": prepared.layout_name,
        "mode": prepared.program.mode,
        "rules": [str(rule) for rule in prepared.program.layout],
        "mesh": prepared.program.plan.mesh.to_dict(),
        "num_steps": steps,
        "checkpoint_every": checkpoint_every,
        "seed": prepared.recipe.seed,
        "batch": {
            leaf.path: {"shape": list(leaf.shape), "dtype": leaf.dtype}
            for leaf in prepared.program.plan.of_kind("batch")
        },
        "examples": num_of(prepared.recipe.data.examples) if isinstance(prepared.recipe.data, TrainData) else None,
        "versions": {
            "python": platform.python_version(),
            **versions(("outlay", "jax", "jaxlib")),
        },
        "before": arrangements(earlier),
    }


def _restored(checkpoints: Checkpoints | None, program: Program) -> tuple[int, Any] | None:
    """The newest step and its state; None for a run that was stopped before its first checkpoint."""
    return checkpoints.restore(program) if checkpoints and checkpoints.exist() else None
