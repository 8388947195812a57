"""`outlay show`: show where every array of a recipe lives. Nothing is trained, created or compiled."""

from __future__ import annotations

from typing import Annotated

import typer

from outlay.cli.options import (
    ForceOption,
    HtmlOption,
    JsonOption,
    RecipeArgument,
    prepare_program,
    with_options,
)
from outlay.cli.output import check_outputs, print_facts, write_page
from outlay.recipes.program_options import ProgramOptions


@with_options(without=["compiler_options"], options=ProgramOptions)
def show(
    context: typer.Context,
    recipe: RecipeArgument,
    options: ProgramOptions,
    explore: Annotated[
        bool,
        typer.Option("--explore", help="Every mesh shape and layout; with --html, a page to choose on."),
    ] = False,
    html: HtmlOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show where every array of a recipe lives, and why, without running it."""
    check_outputs(html, force=force)
    prepared = prepare_program(context, recipe, options)
    if explore:
        from outlay.recipes.prepare import on_devices
        from outlay.report.explore import explore as explore_plans

        program = prepared.program
        layouts = {name: on_devices(it, program.mesh.size) for name, it in prepared.recipe.layouts.items()}
        shown = explore_plans(program, layouts)
    else:
        from outlay.report.show import show as show_plan

        shown = show_plan(prepared.program.plan)
    print_facts(shown, as_json=as_json)
    write_page(html, shown, force=force)
