"""`outlay profile`: what each line of a step was predicted to take, and what it took."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.options import (
    DevicesOption,
    ForceOption,
    JsonOption,
    LayoutOption,
    MeshOption,
    ModeOption,
    RecipeArgument,
    TargetOption,
    TraceOption,
    XlaOption,
    prepare_program,
)
from outlay.cli.output import check_output, print_json, print_picture, write_trace


def profile(
    context: typer.Context,
    recipe: RecipeArgument,
    devices: DevicesOption = None,
    target: TargetOption = None,
    mesh: MeshOption = None,
    layout: LayoutOption = None,
    mode: ModeOption = None,
    xla: XlaOption = "preset",
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Steps to measure.")] = 3,
    read: Annotated[
        Path | None,
        typer.Option("--read", metavar="FILE|FOLDER", help="Run nothing: read a trace of it by jax.profiler."),
    ] = None,
    trace: TraceOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run some steps under JAX's profiler, and set predicted and measured times side by side, by line, layer and leaf.

    With --trace the predicted step stands above the measured ones.
    """
    from outlay.report.profile.profile import profile as profile_program

    check_output(trace, force=force)
    choices = {"mesh": mesh, "layout": layout, "mode": mode}
    prepared = prepare_program(context, recipe, devices=devices, target=target, xla=xla, **choices)
    measured = profile_program(prepared.program, prepared.recipe.data, steps=steps, trace=read)
    if as_json:
        print_json(measured.to_dict())
    else:
        print_picture(measured)
    if trace is not None:
        write_trace(trace, measured.to_trace(), force=force)
