"""`outlay show`: where every array of a recipe lives. Nothing is trained, made or compiled."""

from __future__ import annotations

import typer

from outlay.cli.options import (
    DevicesOption,
    ForceOption,
    HtmlOption,
    JsonOption,
    LayoutOption,
    MeshOption,
    ModeOption,
    RecipeArgument,
    TargetOption,
    prepare_program,
)
from outlay.cli.output import check_output, print_json, print_picture, write_page


def show(
    context: typer.Context,
    recipe: RecipeArgument,
    devices: DevicesOption = None,
    target: TargetOption = None,
    mesh: MeshOption = None,
    layout: LayoutOption = None,
    mode: ModeOption = None,
    html: HtmlOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show where every array of a recipe lives, and why, without running it."""
    check_output(html, force=force)
    prepared = prepare_program(context, recipe, devices=devices, target=target, mesh=mesh, layout=layout, mode=mode)
    from outlay.report.show import show as show_plan

    shown = show_plan(prepared.program.plan)
    if as_json:
        print_json(shown.to_dict())
    else:
        print_picture(shown)
    if html is not None:
        write_page(html, shown.to_html(), force=force)
