"""From a recipe and the user's choices to a program: planned, not yet compiled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from outlay.core.errors import RecipeError
from outlay.core.suggest import did_you_mean
from outlay.execute.modes import Mode
from outlay.execute.program import Program
from outlay.layout.layout import Layout
from outlay.layout.toml import read_layout
from outlay.meshes.build import mesh as make_mesh
from outlay.recipes.recipe import DEFAULT_MESH, Recipe


@dataclass(frozen=True)
class Prepared:
    """A recipe with a layout and a mesh.

    Attributes:
        recipe: the recipe.
        layout_name: the layout's name in the recipe, or the file it was read from.
        program: the program.
    """

    recipe: Recipe
    layout_name: str
    program: Program


def prepare(recipe: Recipe, *, layout: str | None = None, mesh: str | None = None, mode: str | None = None) -> Prepared:
    """Plan a recipe's program. No parameters are made and nothing is compiled.

    Args:
        recipe: the recipe.
        layout: the name of one of its layouts, or a TOML file; the recipe's default if None.
        mesh: a mesh such as `data=4,model=2`; if None the one that goes with the layout.
        mode: `auto` or `manual`; the recipe's own if None.

    Raises:
        RecipeError: there is no such layout.
        MeshError: the mesh does not fit the devices.
        LayoutError: the layout does not fit the state on the mesh.
        ProgramError: there is no such mode, or the step cannot run in it.
    """
    name = recipe.default_layout if layout is None else layout
    chosen, its_mesh = _layout(recipe, name)
    its_mode = cast(Mode, recipe.mode if mode is None else mode)  # what the user typed; the program checks it
    program = Program(recipe.step, recipe.init, recipe.data[0], chosen, make_mesh(mesh or its_mesh), its_mode)
    return Prepared(recipe, name, program)


def _layout(recipe: Recipe, name: str) -> tuple[Layout, str]:
    if name in recipe.layouts:
        return recipe.layouts[name], recipe.mesh_of(name)
    if name.endswith(".toml"):
        return read_layout(Path(name)), DEFAULT_MESH
    raise RecipeError(
        f"the recipe {recipe.name!r} has no layout {name!r}: {did_you_mean(name, recipe.layouts)}"
        f"\n  cure: one of {', '.join(recipe.layouts)}, or a file that ends in .toml"
    )
