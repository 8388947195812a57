"""`outlay run`: train a recipe and leave a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.options import (
    DevicesOption,
    JsonOption,
    LayoutOption,
    MeshOption,
    ModeOption,
    RecipeArgument,
    TargetOption,
    prepare_program,
)
from outlay.cli.output import print_json, print_picture
from outlay.cli.processes import is_launched, own_devices, run_in_processes


def run(
    context: typer.Context,
    recipe: RecipeArgument,
    devices: DevicesOption = None,
    target: TargetOption = None,
    mesh: MeshOption = None,
    layout: LayoutOption = None,
    mode: ModeOption = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, metavar="N", help="Steps to take; the recipe's own number without.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", metavar="DIR", help="The run folder; runs/RECIPE without.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run that is in the run folder.")] = False,
    checkpoint_every: Annotated[
        int | None,
        typer.Option("--checkpoint-every", min=1, metavar="N", help="Save a checkpoint every N steps and at the end."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in the run folder, if there is one, from its last checkpoint."),
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, metavar="P", help="Run in P processes, which share the N devices evenly."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a recipe; metrics, plan, loss and report go to a run folder."""
    if force and resume:
        raise typer.BadParameter("with --force the run that it would continue is replaced", param_hint="--resume")
    if processes is not None and not is_launched():
        raise typer.Exit(run_in_processes(processes, devices))
    devices = own_devices(devices, is_shared=processes is not None)
    prepared = prepare_program(context, recipe, devices=devices, target=target, mesh=mesh, layout=layout, mode=mode)
    from outlay.recipes.run import run as run_recipe
    from outlay.report.show import show
    from outlay.train.run_folder import RunFolder
    from outlay.train.together import is_first

    folder = RunFolder(run_dir or Path("runs") / prepared.recipe.name, force=force, resume=resume)
    if is_first() and not as_json:
        print_picture(show(prepared.program.plan))
    result = run_recipe(prepared, folder, num_steps=steps, checkpoint_every=checkpoint_every)
    if not is_first():
        return
    if as_json:
        print_json(result.to_dict())
    else:
        typer.echo(f"\n{result}")
