"""`outlay profile`: compare predicted and measured times, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.options import (
    ForceOption,
    HtmlOption,
    JsonOption,
    RecipeArgument,
    TraceOption,
    prepare_program,
    with_options,
)
from outlay.cli.output import check_outputs, print_facts, say, write_page, write_trace
from outlay.recipes.program_options import ProgramOptions


@with_options(options=ProgramOptions)
def profile(
    context: typer.Context,
    recipe: RecipeArgument,
    options: ProgramOptions,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Steps to measure.")] = 3,
    read: Annotated[
        Path | None,
        typer.Option("--read", metavar="FILE|FOLDER", help="Run nothing: read a trace written by jax.profiler."),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            "--calibrate",
            metavar="FILE.toml",
            help="Write the speeds that fit what was measured: --target FILE.toml:8.",
        ),
    ] = None,
    html: HtmlOption = None,
    trace: TraceOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run some steps under JAX's profiler, and compare predicted and measured times by line, layer and leaf.

    With --trace the predicted step is shown above the measured ones.
    """
    from outlay.report.profile.profile import profile as profile_program

    check_outputs(html, trace, calibrate, force=force)
    if calibrate is not None and calibrate.suffix != ".toml":
        raise typer.BadParameter(f"{calibrate}: a target names a file that ends in .toml", param_hint="--calibrate")
    prepared = prepare_program(context, recipe, options)
    measured = profile_program(prepared.program, prepared.recipe.data, steps=steps, trace=read, target=options.target)
    print_facts(measured, as_json=as_json)
    write_page(html, measured, force=force)
    write_trace(trace, measured.to_trace, force=force)
    if calibrate is not None:
        speeds = measured.fitted_speeds()
        speeds.write(calibrate, force=force)
        say(str(speeds), err=True)
        say(f"wrote {calibrate}: --target {calibrate}:{measured.num_devices} predicts with it", err=True)
