"""`outlay diff`: what differs between two layouts of a recipe, or between two saved reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from outlay.cli.failures import CHECK_FAILED
from outlay.cli.options import CacheOption, JsonOption, ProgramOptions, load_recipe, with_program_options
from outlay.cli.output import print_facts


@with_program_options(without="layout")
def diff(
    context: typer.Context,
    before: Annotated[
        str, typer.Argument(metavar="A", help="A report (outlay explain --json), or a layout of --recipe.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="Another of the same kind.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="RECIPE",
            help="Compare two of its layouts, by name or as TOML files; other options go to the recipe.",
        ),
    ] = None,
    *,
    options: ProgramOptions,
    cache: CacheOption = True,
    as_json: JsonOption = False,
) -> None:
    """Compare memory and time, and by line what is moved; exit code 0 if all is the same, 1 if not.

    Both layouts are compiled; neither is run.
    """
    from outlay.report.explain.explain_diff import diff_reports, read_report

    if recipe is None:
        if odd := [*options.given(), *context.args]:
            raise typer.BadParameter("reports are compiled already: it goes with --recipe", param_hint=odd[0])
        reports = [read_report(Path(name)) for name in (before, after)]
    else:
        from outlay.report.explain.explain import explain

        loaded = load_recipe(context, recipe, options)
        programs = [replace(options, layout=layout).prepare(loaded).program for layout in (before, after)]
        reports = [explain(program, cache=cache).to_dict() for program in programs]
    differing = diff_reports(*reports)
    print_facts(differing, as_json=as_json, same=not differing)
    raise typer.Exit(CHECK_FAILED if differing else 0)
