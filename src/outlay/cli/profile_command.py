"""`outlay profile`: compare predicted and measured times, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.options import (
    ForceOption,
    JsonOption,
    ProgramOptions,
    RecipeArgument,
    TraceOption,
    prepare_program,
    with_program_options,
)
from outlay.cli.output import check_output, print_facts, write_trace


@with_program_options()
def profile(
    context: typer.Context,
    recipe: RecipeArgument,
    options: ProgramOptions,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Steps to measure.")] = 3,
    read: Annotated[
        Path | None,
        typer.Option("--read", metavar="FILE|FOLDER", help="Run nothing: read a trace written by jax.profiler."),
    ] = None,
    trace: TraceOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run some steps under JAX's profiler, and compare predicted and measured times by line, layer and leaf.

    With --trace the predicted step is shown above the measured ones.
    """
    from outlay.report.profile.profile import profile as profile_program

    check_output(trace, force=force)
    prepared = prepare_program(context, recipe, options)
    measured = profile_program(prepared.program, prepared.recipe.data, steps=steps, trace=read)
    print_facts(measured, as_json=as_json)
    if trace is not None:
        write_trace(trace, measured.to_trace(), force=force)
