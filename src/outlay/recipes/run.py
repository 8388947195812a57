"""Run a recipe: train, evaluate, and leave a run folder that tells all of it."""

from __future__ import annotations

import platform
from typing import Any

import jax

from outlay.recipes.prepare import Prepared
from outlay.recipes.report_page import report_page
from outlay.recipes.result import RunResult
from outlay.recipes.versions import versions
from outlay.train.loop import fit
from outlay.train.run_folder import RunFolder


def run(prepared: Prepared, folder: RunFolder, *, num_steps: int | None = None) -> RunResult:
    """Train a prepared recipe, evaluate it, and fill its run folder. Progress goes to stderr.

    Args:
        prepared: the recipe with its program.
        folder: where config, plan, metrics, picture and report go.
        num_steps: how many steps; the recipe's own number if None.

    Raises:
        Interrupted: on Ctrl-C; config, plan and the metrics so far are in the folder.
    """
    recipe, program = prepared.recipe, prepared.program
    num_steps = recipe.num_steps if num_steps is None else num_steps
    folder.write_config(_config(prepared, num_steps))
    folder.write_plan(program.plan)
    key = jax.random.key(recipe.seed)
    done = fit(program, recipe.data, num_steps=num_steps, key=key, metrics_path=folder.metrics_path)
    mesh = program.plan.mesh
    result = RunResult(
        recipe=recipe.name,
        layout=prepared.layout_name,
        devices=str(mesh),
        simulated=mesh.kind == "simulated",
        num_steps=num_steps,
        seconds=done.seconds,
        num_samples=done.num_samples,
        training=done.history[-1],
        held_out=recipe.evaluate(program, done.state) if recipe.evaluate else {},
        sample=recipe.sample(program, done.state) if recipe.sample else "",
        folder=str(folder.path),
    )
    if result.sample:
        folder.write_sample(result.sample)
    picture = folder.write_loss(done.history) if "loss" in done.history[0] else None
    folder.write_report(report_page(result, program.plan, picture))
    return result


def _config(prepared: Prepared, num_steps: int) -> dict[str, Any]:
    return {
        "recipe": prepared.recipe.name,
        "layout": prepared.layout_name,
        "mode": prepared.program.mode,
        "rules": [str(rule) for rule in prepared.program.layout],
        "mesh": prepared.program.plan.mesh.to_dict(),
        "num_steps": num_steps,
        "seed": prepared.recipe.seed,
        "batch": {
            leaf.path: {"shape": list(leaf.shape), "dtype": leaf.dtype}
            for leaf in prepared.program.plan.of_kind("batch")
        },
        "versions": {
            "python": platform.python_version(),
            **versions(("outlay", "jax", "jaxlib")),
        },
    }
