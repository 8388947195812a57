"""The arguments and options that commands share, and the program they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.interrupt import watch
from outlay.recipes.plugins import FILE_WORDS

if TYPE_CHECKING:
    from outlay.recipes.prepare import Prepared
    from outlay.recipes.recipe import Recipe

RecipeArgument = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help=f"A recipe by name (digits), path/to/file.py:function, or {FILE_WORDS}."),
]
DevicesOption = Annotated[
    int | None,
    typer.Option("--devices", min=1, metavar="N", help="Simulate N devices; without it, those that are attached."),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="T",
        help="Hardware to plan for, such as h100:32x8, tpu-v5e:4x4 or cpu:8; it need not be here.",
    ),
]
MeshOption = Annotated[
    str | None,
    typer.Option("--mesh", metavar="AXES", help="Mesh axes, such as data=4,model=2; one may be -1."),
]
LayoutOption = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="NAME|FILE.toml",
        help="One of the recipe's layouts, or a TOML file of rules; NAME+host keeps the optimizer's state on the host.",
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode", metavar="auto|manual|placed", help="How the step is executed; without, as the layout needs."
    ),
]
XlaOption = Annotated[
    str,
    typer.Option(
        "--xla",
        metavar="preset|none|FILE",
        help="Options of the compiler: what published recipes set, none, or a file with one --name=value a line.",
    ),
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write it as a page for the browser, too.")
]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE.json", help="Write the timeline as a trace for ui.perfetto.dev, too."),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Write over a file that Outlay did not make; without, only over its own.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


# What a command takes besides its own options goes to the recipe, as in `outlay run lm --model tiny`.
RECIPE_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}


def command_group(name: str, *, help: str, epilog: str) -> typer.Typer:
    """A command that only holds others, such as `outlay slurm`; alone it shows its help."""
    return typer.Typer(name=name, no_args_is_help=True, rich_markup_mode=None, help=help, epilog=epilog)


def prepare_program(
    context: typer.Context,
    recipe: str,
    *,
    devices: int | None,
    target: str | None,
    mesh: str | None,
    layout: str | None,
    mode: str | None,
    xla: str = "preset",
) -> Prepared:
    """The program that the shared options ask for: planned, not yet compiled.

    Raises:
        OutlayError: something that was asked for does not exist or does not fit.
    """
    from outlay.recipes.prepare import prepare

    loaded = load_recipe(context, recipe, devices, target)
    options = compiler_options_of(xla)
    return prepare(loaded, layout=layout, mesh=mesh, mode=mode, target=target, compiler_options=options)


def compiler_options_of(xla: str) -> Path | str:
    """What `--xla` asks for: a name of what is built in, or else a file."""
    return xla if xla in ("preset", "none") else Path(xla)


def load_recipe(context: typer.Context, recipe: str, devices: int | None, target: str | None) -> Recipe:
    """The recipe that was asked for, with so many simulated devices where a number is given.

    Args:
        context: of the command; what it did not understand are the recipe's options.
        recipe: what the user typed for it.
        devices: how many devices to simulate.
        target: hardware to plan for; excludes `devices`.

    Raises:
        OutlayError: there is no such recipe or option, or JAX has started with other devices.
    """
    from outlay.recipes.find import find_recipe

    if devices is not None and target is not None:
        raise typer.BadParameter(
            f"with --devices {devices} there are two answers to what it runs on", param_hint="--target"
        )
    known = own_options(context, recipe)
    watch()
    _simulate(devices)
    loaded = find_recipe(recipe, context.args, known)
    _simulate(devices)  # again: the recipe's file may have asked for another number, or have started JAX
    return loaded


def own_options(context: typer.Context, recipe: str) -> list[str]:
    """The options of a command itself, beside which all others are the recipe's.

    Args:
        context: of the command.
        recipe: what the user typed where the recipe belongs.
    """
    if recipe.startswith("-"):
        raise typer.BadParameter(f"the recipe comes first, before its option {recipe}", param_hint="RECIPE")
    return [option for parameter in context.command.params for option in parameter.opts if option.startswith("--")]


def _simulate(devices: int | None) -> None:
    from outlay.core.jax_compat import settle_on_cpu
    from outlay.devices.simulated import simulate

    if devices is None:
        settle_on_cpu()
    else:
        simulate(devices)
