"""Make the program of a recipe small enough to be computed here, on a smaller mesh of the same kind."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from outlay.core.error_types import RecipeError
from outlay.devices.build import mesh as make_mesh
from outlay.devices.mesh_info import target_made_for
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.layout.layout import sample_axes
from outlay.program.compiler_options import RequestedOptions
from outlay.recipes.prepare import Prepared, prepare
from outlay.recipes.recipe import Recipe

MOST_DEVICES = 16
"""To how many devices a mesh is made smaller: of two hosts of eight, what crosses hosts still does."""


def smaller(prepared: Prepared, *, mode: str | None = None, compiler_options: RequestedOptions = "preset") -> Prepared:
    """Return a recipe's program with smaller sizes, as the recipe itself says, on a mesh that can be simulated.

    Args:
        prepared: the program at full size.
        mode: as it was asked for.
        compiler_options: likewise.

    Raises:
        RecipeError: the recipe does not say how it is made smaller.
    """
    program, recipe = prepared.program, prepared.recipe
    if recipe.small is None:
        raise RecipeError(
            f"the recipe {recipe.name!r} does not say how it is made smaller\n"
            "  fix: Recipe(..., small=lambda devices, instead_of: recipe(layers=4, width=256, batch=4 * devices)), or "
            "outlay verify --static, which computes nothing"
        )
    full = {str(name): program.mesh.shape[name] for name in program.mesh.axis_names}
    less = smaller_axes(full)
    splitting = sample_axes(program.layout, program.batch_shapes, program.mesh)
    num = [math.prod(axes[name] for name in _flat(splitting)) for axes in (less, full)]
    small: Recipe = recipe.small(*num)
    target = target_made_for(program.mesh.devices.flat[0])
    mesh = program.mesh
    if less != full and target is not None:
        mesh = make_mesh(MeshSpec(less), target=smaller_target(target, math.prod(less.values())))
    return prepare(
        small, layout=prepared.layout_name, mesh=mesh, mode=mode or program.mode, compiler_options=compiler_options
    )


def _flat(axes: tuple[Any, ...]) -> list[str]:
    return [name for one in axes for name in (one if isinstance(one, tuple) else (one,))]


def smaller_axes(axes: Mapping[str, int]) -> dict[str, int]:
    """Return a mesh of at most 16 devices with the same axes: the longest becomes shorter first.

    Examples:
        >>> smaller_axes({"data": 128, "model": 2}), smaller_axes({"data": 8})
        ({'data': 8, 'model': 2}, {'data': 8})
    """
    sizes = dict(axes)
    while math.prod(sizes.values()) > MOST_DEVICES:
        longest = max(sizes, key=lambda name: sizes[name])
        if sizes[longest] <= 2:  # many short axes stay as they are
            break
        sizes[longest] //= next(factor for factor in range(2, sizes[longest] + 1) if sizes[longest] % factor == 0)
    return sizes


def smaller_target(target: Target, num_devices: int) -> Target:
    """Return as many devices of the same kind, on several hosts if there were several.

    Examples:
        >>> str(smaller_target(Target.parse("h100:32x8"), 16)), str(smaller_target(Target.parse("tpu-v5e:16x16"), 16))
        ('h100:2x8', 'tpu-v5e:4x4')
    """
    if target.hardware.kind == "gpu":
        per_host = min(target.shape[1], num_devices)
        return dataclasses.replace(target, shape=(num_devices // per_host, per_host))
    sizes = list(target.shape)
    while dataclasses.replace(target, shape=tuple(sizes)).num_devices > num_devices and max(sizes) > 1:
        longest = max(range(len(sizes)), key=lambda at: sizes[at])
        sizes[longest] //= next(factor for factor in range(2, sizes[longest] + 1) if sizes[longest] % factor == 0)
    return dataclasses.replace(target, shape=tuple(sizes))
