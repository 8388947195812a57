"""Make a program from a recipe and the user's choices: planned, not yet compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jax.sharding import Mesh

from outlay.core.error_types import RecipeError
from outlay.core.suggest import did_you_mean
from outlay.devices.build import mesh as make_mesh
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.layout.placement import on_host
from outlay.layout.read_layout import read_layout_file
from outlay.layout.rule import Rule
from outlay.program.compiler_options import RequestedOptions
from outlay.program.make import program as make_program
from outlay.program.modes import Mode
from outlay.program.program import Program
from outlay.recipes.program_options import ProgramOptions
from outlay.recipes.recipe import DEFAULT_MESH, Recipe
from outlay.search.candidate import WITH_HOST, base_name
from outlay.train.data import TrainData

if TYPE_CHECKING:
    from outlay.schedules.stage_schedule import StageSchedule


@dataclass(frozen=True)
class Prepared:
    """A recipe with its program, after layout and mesh were chosen.

    Attributes:
        recipe: the recipe.
        layout_name: the layout's name in the recipe, or the file it was read from.
        program: the program.
    """

    recipe: Recipe
    layout_name: str
    program: Program


def prepare(
    recipe: Recipe,
    *,
    layout: str | None = None,
    mesh: str | Mesh | None = None,
    mode: str | None = None,
    target: str | None = None,
    compiler_options: RequestedOptions = "preset",
    schedule: StageSchedule | str | None = None,
) -> Prepared:
    """Plan a recipe's program. No parameters are created and nothing is compiled.

    Args:
        recipe: the recipe.
        layout: the name of one of its layouts, or a TOML file; by default the first layout for the given mode, or else
            the recipe's default.
        mesh: a mesh, or one as text such as `data=4,model=2`; by default that of the layout, in the recipe or in the
            file.
        mode: `auto`, `manual` or `placed`; by default that of the layout.
        target: the hardware to plan for, such as `h100:1x8`; by default the devices that JAX has.
        compiler_options: as `outlay.program` takes them.
        schedule: likewise.

    Raises:
        RecipeError: there is no such layout.
        MeshError: the mesh does not fit the devices.
        TargetError: there is no such target, or its compiler is not installed.
        LayoutError: the layout does not fit the state on the mesh.
        ProgramError: there is no such mode, or the step cannot run in it.
    """
    # Who names only a mode means a layout that was written for it: the default one may not run so.
    name = _layout_for(recipe, mode) if layout is None else layout
    chosen, default_mesh = layout_of(recipe, name)
    step_mode = cast(Mode, mode_of(recipe, name) if mode is None else mode)  # what was typed; the program checks it
    device_mesh: Mesh = mesh if isinstance(mesh, Mesh) else make_mesh(mesh or default_mesh, target=target)
    fixed = on_devices(chosen, device_mesh.size)
    program = make_program(
        recipe.step,
        recipe.init,
        example_batch(recipe),
        layout=fixed,
        mesh=device_mesh,
        mode=step_mode,
        compiler_options=compiler_options,
        parts=recipe.parts,
        schedule=schedule,
    )
    return Prepared(recipe, name, program)


def prepare_with(recipe: Recipe, options: ProgramOptions) -> Prepared:
    """Plan a recipe's program as a user's options ask for it; the devices that they simulate are there already.

    Raises:
        OutlayError: something that was asked for does not exist or does not fit, as for `prepare`.
    """
    return prepare(
        recipe,
        layout=options.layout,
        mesh=options.mesh,
        mode=options.mode,
        target=options.target,
        compiler_options=options.compiler_options,
        schedule=options.schedule,
    )


def example_batch(recipe: Recipe) -> Any:
    """Return a batch like all others, for its shapes.

    Raises:
        RecipeError: there is none.
    """
    if isinstance(recipe.data, TrainData):
        return recipe.data.example  # without shuffling, for which much would be imported
    try:
        return recipe.data[0]
    except (IndexError, KeyError) as error:
        raise RecipeError(
            f"the recipe {recipe.name!r} has no batch: data[0] raised {type(error).__name__}: {error}"
            "\n  fix: data[step] is the batch of every step, counted from 0"
        ) from error


def _with_host(layout: Layout | Callable[[int], Layout]) -> Layout | Callable[[int], Layout]:
    # Before all other rules, since the first that says where a leaf is stored decides.
    if not isinstance(layout, Layout):
        return lambda num_devices: Layout([*_ON_HOST, *layout(num_devices)])
    return Layout([*_ON_HOST, *layout])


_ON_HOST = (Rule("opt_state.**", on_host(), source=WITH_HOST),)


def on_devices(layout: Layout | Callable[[int], Layout], num_devices: int) -> Layout:
    """Return a recipe's layout for a number of devices."""
    return layout if isinstance(layout, Layout) else layout(num_devices)


def _layout_for(recipe: Recipe, mode: str | None) -> str:
    """Return the name of the first layout of a mode, or the default layout."""
    return next((name for name in recipe.layouts if recipe.mode_of(name) == mode), recipe.default_layout)


def layout_names(recipe: Recipe, target: Target) -> list[str]:
    """List a recipe's layouts, and each with the optimizer's state on the host if that is a memory of its own."""
    own = list(recipe.layouts)
    return [*own, *(f"{name}{WITH_HOST}" for name in own)] if target.has_host_memory else own


def mode_of(recipe: Recipe, name: str) -> Mode:
    """Return the mode in which a recipe's layout is executed."""
    return recipe.mode_of(name if name in recipe.layouts else base_name(name))


def layout_of(recipe: Recipe, name: str) -> tuple[Layout | Callable[[int], Layout], str]:
    """Return a layout, by its name in a recipe or from a TOML file, and its mesh as text.

    Either may end in `+host`, which keeps the optimizer's state in the memory of the host, and in options of its
    pipelines and contexts, as in `pp+host:microbatches=16`.

    Raises:
        RecipeError: the recipe has no such layout, and it is not a TOML file.
        LayoutError: the file cannot be read, or the layout has no such option.
    """
    if name in recipe.layouts:
        return recipe.layouts[name], recipe.mesh_of(name)
    base, options = _options_of(name)
    if options:
        return _with_options(recipe, base, options)
    if name.endswith(WITH_HOST):
        layout, mesh = layout_of(recipe, name.removesuffix(WITH_HOST))
        return _with_host(layout), mesh
    if name.endswith(".toml"):
        file = read_layout_file(Path(name))
        return file.layout, file.mesh or DEFAULT_MESH
    raise RecipeError(
        f"the recipe {recipe.name!r} has no layout {name!r}: {did_you_mean(name, recipe.layouts)}"
        f"\n  fix: use one of {', '.join(recipe.layouts)}, or a file that ends in .toml; "
        f"{WITH_HOST} after the name keeps the optimizer's state on the host"
    )


def _options_of(name: str) -> tuple[str, dict[str, str]]:
    """Separate a layout's name from options of its pipelines and contexts."""
    if ":" not in name:
        return name, {}
    from outlay.layout.layout_options import split_name

    return split_name(name)


def _with_options(recipe: Recipe, base: str, options: dict[str, str]) -> tuple[Layout | Callable[[int], Layout], str]:
    from outlay.layout.layout_options import with_options

    layout, mesh = layout_of(recipe, base)
    if isinstance(layout, Layout):
        return with_options(layout, options, base), mesh
    return lambda num_devices: with_options(layout(num_devices), options, base), mesh
