"""The arguments and options that commands share, and the program they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from outlay.recipes.prepare import Prepared
    from outlay.recipes.recipe import Recipe

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe by name (digits), or path/to/file.py:function.")
]
DevicesOption = Annotated[
    int | None,
    typer.Option("--devices", min=1, metavar="N", help="Simulate N devices; without it, those that are attached."),
]
MeshOption = Annotated[
    str | None,
    typer.Option("--mesh", metavar="AXES", help="Mesh axes, such as data=4,model=2; one may be -1."),
]
LayoutOption = Annotated[
    str | None,
    typer.Option("--layout", metavar="NAME|FILE.toml", help="One of the recipe's layouts, or a TOML file of rules."),
]
ModeOption = Annotated[
    str | None,
    typer.Option("--mode", metavar="auto|manual", help="How the step is executed; the recipe's own mode without."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def prepare_program(
    recipe: str, devices: int | None, mesh: str | None, layout: str | None, mode: str | None
) -> Prepared:
    """The program that the shared options ask for: planned, not yet compiled.

    Raises:
        OutlayError: something that was asked for does not exist or does not fit.
    """
    from outlay.recipes.prepare import prepare

    return prepare(load_recipe(recipe, devices), layout=layout, mesh=mesh, mode=mode)


def load_recipe(recipe: str, devices: int | None) -> Recipe:
    """The recipe that was asked for, with so many simulated devices where a number is given.

    Raises:
        OutlayError: there is no such recipe, or JAX has started with other devices.
    """
    from outlay.recipes.find import find_recipe

    _simulate(devices)
    found = find_recipe(recipe)
    _simulate(devices)  # again: the recipe's file may have asked for another number, or have started JAX
    return found


def _simulate(devices: int | None) -> None:
    from outlay.meshes.simulated import simulate

    if devices is not None:
        simulate(devices)
