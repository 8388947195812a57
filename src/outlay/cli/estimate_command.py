"""`outlay estimate`: how long a step of a recipe would take on hardware that need not be here."""

from __future__ import annotations

import typer

from outlay.cli.options import (
    DevicesOption,
    JsonOption,
    LayoutOption,
    MeshOption,
    ModeOption,
    RecipeArgument,
    TargetOption,
    XlaOption,
    prepare_program,
)
from outlay.cli.output import print_json, say


def estimate(
    context: typer.Context,
    recipe: RecipeArgument,
    devices: DevicesOption = None,
    target: TargetOption = None,
    mesh: MeshOption = None,
    layout: LayoutOption = None,
    mode: ModeOption = None,
    xla: XlaOption = "preset",
    as_json: JsonOption = False,
) -> None:
    """Estimate the time of a step as a range, with all that it assumes; `outlay explain` says where it goes."""
    prepared = prepare_program(
        context, recipe, devices=devices, target=target, mesh=mesh, layout=layout, mode=mode, xla=xla
    )
    from outlay.report.step_time import estimate as estimate_program

    estimated = estimate_program(prepared.program)
    if as_json:
        print_json(estimated.to_dict())
    else:
        say(str(estimated))
