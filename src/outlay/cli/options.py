"""The arguments and options that commands share, and the program that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlay.cli.interrupt import watch
from outlay.cli.typer_options import command_option
from outlay.recipes.plugins import FILE_WORDS
from outlay.recipes.program_options import ProgramOptions

if TYPE_CHECKING:
    from outlay.recipes.prepare import Prepared
    from outlay.recipes.recipe import Recipe


RecipeArgument = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help=f"A recipe by name (digits), path/to/file.py:function, or {FILE_WORDS}."),
]
DevicesOption = Annotated[int | None, command_option(ProgramOptions, "devices")]
ModeOption = Annotated[str | None, command_option(ProgramOptions, "mode")]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write it as a page for the browser.")
]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE.json", help="Also write the timeline as a trace for ui.perfetto.dev."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Also replace files that Outlay did not make.")]
"""The option `--force` of a command that writes files."""
CacheOption = Annotated[
    bool,
    typer.Option("--cache/--no-cache", help="Whether to reuse what was compiled before; by default yes."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
"""The option `--json` of a command that answers."""


# Words that a command does not understand go to the recipe, as in `outlay run lm --model tiny`.
RECIPE_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}


def command_group(name: str, *, help: str, epilog: str) -> typer.Typer:
    """Return a command that only holds others, such as `outlay slurm`; alone it shows its help."""
    return typer.Typer(name=name, no_args_is_help=True, rich_markup_mode=None, help=help, epilog=epilog)


def prepare_program(context: typer.Context, recipe: str, options: ProgramOptions) -> Prepared:
    """Return the program that a command asks for: planned, not yet compiled.

    Raises:
        OutlayError: something that was asked for does not exist or does not fit.
    """
    return options.prepare(load_recipe(context, recipe, options))


def load_recipe(
    context: typer.Context,
    recipe: str,
    options: ProgramOptions,
    *,
    record: Sequence[str] = (),
    stride: int | None = None,
) -> Recipe:
    """Return the recipe that a command asks for, simulating devices if a number is given.

    Args:
        context: the context of the command; its unknown options are the recipe's.
        recipe: what the user typed for it.
        options: `--devices` and `--target` exclude each other.
        record: patterns of what a run records.
        stride: the number of steps from one record to the next.

    Raises:
        OutlayError: there is no such recipe or option, or JAX has started with other devices.
    """
    from outlay.recipes.find import find_recipe

    devices = options.devices
    if devices is not None and options.target is not None:
        raise typer.BadParameter(f"it cannot be combined with --devices {devices}", param_hint="--target")
    known = own_options(context, recipe)
    watch()
    _simulate(devices)
    loaded = find_recipe(recipe, context.args, known, record=record, stride=stride)
    _simulate(devices)  # once more: the recipe's file may have set another number, or started JAX
    return loaded


def own_options(context: typer.Context, recipe: str) -> list[str]:
    """Return a command's own options; all others go to the recipe.

    Args:
        context: the context of the command.
        recipe: what the user typed where the recipe belongs.
    """
    if recipe.startswith("-"):
        raise typer.BadParameter(f"give the recipe first, then its option {recipe}", param_hint="RECIPE")
    return [option for parameter in context.command.params for option in parameter.opts if option.startswith("--")]


def _simulate(devices: int | None) -> None:
    from outlay.core.jax_compat import use_cpu_if_alone
    from outlay.devices.simulated import simulate

    if devices is None:
        use_cpu_if_alone()
    else:
        simulate(devices)
