"""The arguments and options that commands share, and the program that they ask for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

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
    typer.Option("--devices", min=1, metavar="N", help="Simulate N devices; by default, use the attached ones."),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="T",
        help="Hardware to plan for, such as h100:32x8, tpu-v5e:4x4, cpu:8 or FILE.toml:8; it need not be attached.",
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
        "--mode", metavar="auto|manual|placed", help="How the step is executed; by default as the layout needs."
    ),
]
CompilerOptionsOption = Annotated[
    str,
    typer.Option(
        "--compiler-options",
        "--xla",
        metavar="preset|none|FILE",
        help="Compiler options: those of published recipes, none, or a file with one --name=value per line.",
    ),
]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write it as a page for the browser.")
]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE.json", help="Also write the timeline as a trace for ui.perfetto.dev."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Also replace files that Outlay did not make.")]
CacheOption = Annotated[
    bool,
    typer.Option("--cache/--no-cache", help="Whether to reuse what was compiled before; by default yes."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


# Words that a command does not understand go to the recipe, as in `outlay run lm --model tiny`.
RECIPE_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}


def command_group(name: str, *, help: str, epilog: str) -> typer.Typer:
    """Return a command that only holds others, such as `outlay slurm`; alone it shows its help."""
    return typer.Typer(name=name, no_args_is_help=True, rich_markup_mode=None, help=help, epilog=epilog)


@dataclass(frozen=True)
class ProgramOptions:
    """The options that ask for a program, which most commands have in this order."""

    devices: DevicesOption = None
    target: TargetOption = None
    mesh: MeshOption = None
    layout: LayoutOption = None
    mode: ModeOption = None
    compiler_options: CompilerOptionsOption = "preset"

    def given(self, *but: str) -> list[str]:
        """Return the options that the user has given a value of their own, apart from some."""
        own = {field.name: field for field in fields(self) if field.name not in but}
        names = [name for name, field in own.items() if getattr(self, name) != field.default]
        return [f"--{name.replace('_', '-')}" for name in names]

    def words(self) -> list[str]:
        """Return the options that the user has given, as they are written on a command line."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default}
        return [word for name, value in own.items() for word in (f"--{name.replace('_', '-')}", str(value))]

    def prepare(self, recipe: Recipe) -> Prepared:
        """Return the program of a recipe: planned, not yet compiled.

        Raises:
            OutlayError: something that was asked for does not exist or does not fit.
        """
        from outlay.recipes.prepare import prepare

        how = dict(vars(self))
        del how["devices"]  # simulated when the recipe was loaded: its own file may already use them
        return prepare(recipe, **how)


def with_program_options(*, without: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `ProgramOptions` instead of its parameter `options`, which receives their values.

    Args:
        without: an option that makes no sense for this command.
    """
    hints = get_type_hints(ProgramOptions, include_extras=True)
    shared = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(ProgramOptions)
        if field.name != without
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [one for each in own for one in (shared if each.name == "options" else [each])]

        @functools.wraps(command)
        def with_options(**values: Any) -> None:
            options = ProgramOptions(**{one.name: values.pop(one.name) for one in shared})
            command(options=options, **values)

        # typer reads a command's options from its signature.
        keywords = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters]
        with_options.__signature__ = inspect.Signature(keywords)  # pyright: ignore[reportAttributeAccessIssue]
        with_options.__annotations__ = {one.name: one.annotation for one in keywords}
        return with_options

    return decorate


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
