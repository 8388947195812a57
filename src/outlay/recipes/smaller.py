"""Make the program of a recipe small enough to be computed here, on a smaller mesh of the same kind."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from outlay.core.error_types import RecipeError
from outlay.core.one_line import OneLine
from outlay.devices.build import mesh as make_mesh
from outlay.devices.mesh_info import target_made_for
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.layout.layout import sample_axes
from outlay.program.compiler_options import RequestedOptions
from outlay.recipes.prepare import Prepared, prepare
from outlay.recipes.recipe import Recipe
from outlay.recipes.smaller_mesh import SmallerMesh

MOST_DEVICES = 16
"""To how many devices a mesh is made smaller: of two hosts of eight, what crosses hosts still does."""


def smaller(prepared: Prepared, *, mode: str | None = None, compiler_options: RequestedOptions = "preset") -> Prepared:
    """Return a recipe's program with smaller sizes, as the recipe itself says, on a mesh that can be simulated.

    If the recipe does not say how, its sizes stay, and each device has as many samples as it had.

    Args:
        prepared: the program at full size.
        mode: as it was asked for.
        compiler_options: likewise.

    Raises:
        RecipeError: the recipe does not say how it is made smaller, and fewer devices are not fewer.
    """
    program, recipe = prepared.program, prepared.recipe
    if not can_be_smaller(prepared):
        raise RecipeError(
            f"the recipe {recipe.name!r} does not say how it is made smaller\n"
            "  fix: Recipe(..., small=lambda less: recipe(width=less.size(4096, at_least=256), batch=less.batch(256)))"
            ", or outlay verify --static, which computes nothing"
        )
    full = {str(name): program.mesh.shape[name] for name in program.mesh.axis_names}
    samples = _flat(sample_axes(program.layout, program.batch_shapes, program.mesh))
    less = SmallerMesh(full, smaller_axes(full), samples, program.mesh.devices.flat[0].platform)
    small = with_fewer_samples(recipe, less) if recipe.small is None else recipe.small(less)
    target = target_made_for(program.mesh.devices.flat[0])
    mesh = program.mesh
    if less.small != less.full and target is not None:
        mesh = make_mesh(MeshSpec(less.small), target=smaller_target(target, math.prod(less.small.values())))
    return prepare(
        small, layout=prepared.layout_name, mesh=mesh, mode=mode or program.mode, compiler_options=compiler_options
    )


def can_be_smaller(prepared: Prepared) -> bool:
    """Return whether a recipe says how it is made smaller, or at least its mesh can be.

    Args:
        prepared: the program at full size.
    """
    return prepared.recipe.small is not None or prepared.program.mesh.size > MOST_DEVICES


def with_fewer_samples(recipe: Recipe, less: SmallerMesh) -> Recipe:
    """Return a recipe whose batches are smaller by as much as the devices that split them are fewer.

    Args:
        recipe: the recipe.
        less: both meshes.
    """
    return dataclasses.replace(recipe, data=FewerSamples(recipe.data, less))


@dataclass(frozen=True)
class FewerSamples(OneLine):
    """The first samples of each batch of some data."""

    data: Any
    less: SmallerMesh

    def __getitem__(self, step: int) -> Any:
        """Return the first samples of the batch of a step."""
        return jax.tree.map(self._first, self.data[step])

    def _first(self, array: Any) -> Any:
        return array[: self.less.same_each(array.shape[0])] if np.ndim(array) else array


def _flat(axes: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(name for one in axes for name in (one if isinstance(one, tuple) else (one,)))


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
