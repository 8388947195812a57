"""`outlay diff`: what differs between two layouts of a recipe, or between two saved reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outlay.cli.failures import CHECK_FAILED
from outlay.cli.options import (
    DevicesOption,
    JsonOption,
    MeshOption,
    ModeOption,
    TargetOption,
    XlaOption,
    compiler_options_of,
    load_recipe,
)
from outlay.cli.output import print_json, print_picture


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
            help="Compare two of its layouts, by name or as TOML files; what else stands there goes to the recipe.",
        ),
    ] = None,
    devices: DevicesOption = None,
    target: TargetOption = None,
    mesh: MeshOption = None,
    mode: ModeOption = None,
    xla: XlaOption = "preset",
    as_json: JsonOption = False,
) -> None:
    """Compare memory, time, and by line what is moved; exit code 0 if all is the same, 1 if not.

    Both layouts are compiled and neither is run.
    """
    from outlay.report.explain.explain_diff import diff_reports, read_report

    if recipe is None:
        given = {"--devices": devices, "--target": target, "--mesh": mesh, "--mode": mode}
        odd = [option for option, value in given.items() if value is not None] + list(context.args)
        if odd:
            raise typer.BadParameter("reports are compiled already: it goes with --recipe", param_hint=odd[0])
        reports = [read_report(Path(name)) for name in (before, after)]
    else:
        from outlay.recipes.prepare import prepare
        from outlay.report.explain.explain import explain

        loaded = load_recipe(context, recipe, devices, target)
        choices: dict[str, Any] = {
            "mesh": mesh,
            "mode": mode,
            "target": target,
            "compiler_options": compiler_options_of(xla),
        }
        programs = [prepare(loaded, layout=layout, **choices).program for layout in (before, after)]
        reports = [explain(program).to_dict() for program in programs]
    differing = diff_reports(*reports)
    if as_json:
        print_json({**differing.to_dict(), "same": not differing})
    else:
        print_picture(differing)
    if differing:
        raise typer.Exit(CHECK_FAILED)
