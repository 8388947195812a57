"""The layouts of a recipe on the meshes of a target: what `choose` tries, before options of the recipe."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.program.abstract import abstract_init
from outlay.program.make import of_parts
from outlay.recipes.prepare import layout_names, layout_of, on_devices
from outlay.recipes.recipe import Recipe
from outlay.search.candidate import mesh_shapes, on_target
from outlay.search.variants import num_stacked, special_axes, variants


@dataclass(frozen=True)
class LayoutsToTry:
    """Layouts by name, and the meshes to try each on.

    Attributes:
        layouts: the layouts; a pipeline with other numbers, or a context with another exchange, is one of its own.
        meshes: the meshes of each, as text.
    """

    layouts: dict[str, Layout] = field(default_factory=dict)
    meshes: dict[str, list[str]] = field(default_factory=dict)


def ways_of_layouts(
    recipe: Recipe, target: Target, layouts: Sequence[str] | None, meshes: Sequence[str] | None
) -> LayoutsToTry:
    """Return the layouts to choose from, on every mesh that is possible.

    Args:
        recipe: the recipe.
        target: the hardware.
        layouts: names, or TOML files; all of the recipe's if None.
        meshes: meshes as text, for every layout; if None all that the target can form.

    Raises:
        RecipeError: there is no such layout.
        MeshError: a mesh does not fit the target.
    """
    ways = LayoutsToTry()
    state = functools.cache(lambda: abstract_init(of_parts(recipe.step, recipe.init, recipe.parts)[1]))
    for name in layouts or layout_names(recipe, target):
        given, own = layout_of(recipe, name)
        layout = on_devices(given, target.num_devices)
        special = special_axes(layout)
        shapes = _shapes(own, meshes, target, special)
        if not layouts and meshes:  # a layout that was not named is not for meshes without its axes
            shapes = [mesh for mesh in shapes if {*special} <= {*MeshSpec.parse(mesh).axis_sizes}]
        num_layers = num_stacked(layout, state()) if layout.stage_axes else 0
        for mesh in shapes:
            stages = math.prod(MeshSpec.parse(mesh).axis_sizes.get(axis, 1) for axis in {*layout.stage_axes})
            if num_layers % stages and not meshes:
                continue  # for a model of 126 layers, most numbers of stages
            for one, varied in variants(name, layout, MeshSpec.parse(mesh), num_layers):
                ways.layouts[one] = varied
                ways.meshes.setdefault(one, []).append(mesh)
    return ways


def _shapes(own: str, meshes: Sequence[str] | None, target: Target, special: Sequence[str]) -> list[str]:
    """List the meshes to try a layout on, as text."""
    if meshes:
        resolved = (on_target(MeshSpec.parse(text), target) for text in meshes)
        return list(dict.fromkeys(map(str, resolved)))
    return [str(mesh) for mesh in mesh_shapes(MeshSpec.parse(own), target, special)]
