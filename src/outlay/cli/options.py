"""The arguments and options that commands share, and the program they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from outlay.recipes.prepare import Prepared

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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def prepare_program(recipe: str, devices: int | None, mesh: str | None, layout: str | None) -> Prepared:
    """The program that the shared options ask for: planned, not yet compiled.

    Raises:
        OutlayError: something that was asked for does not exist or does not fit.
    """
    from outlay.recipes.find import find_recipe
    from outlay.recipes.prepare import prepare

    _simulate(devices)
    found = find_recipe(recipe)
    _simulate(devices)  # again: the recipe's file may have asked for another number, or have started JAX
    return prepare(found, layout=layout, mesh=mesh)


def _simulate(devices: int | None) -> None:
    from outlay.meshes.simulated import simulate

    if devices is not None:
        simulate(devices)
