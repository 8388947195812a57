"""The arguments and options that commands share, made from the classes that declare them, and the recipe they name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outlay.cli.interrupt import watch
from outlay.cli.typer_options import command_option
from outlay.core.option import Declared, options_in
from outlay.recipes.find import FILE_WORDS
from outlay.recipes.program_options import ProgramOptions

if TYPE_CHECKING:
    from outlay.recipes.prepare import Prepared
    from outlay.recipes.recipe import Recipe


def _parameter(declared: Declared, declaring: type) -> Parameter:
    """Return the parameter from which typer makes an option."""
    kind = list[str] if declared.is_repeatable else declared.kind
    default = None if declared.is_repeatable else declared.default
    annotation = Annotated[kind if isinstance(default, bool) else kind | None, command_option(declaring, declared.name)]
    return Parameter(declared.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_options(
    without: Collection[str] = (), before: Mapping[str, str] | None = None, **declaring: type
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that classes declare, instead of its parameters for values of these classes.

    Args:
        without: options that make no sense for this command.
        before: own options of the command that its help has before one of a class, by their names.
        **declaring: the class of each such parameter.

    Example:
        >>> from outlay.recipes.program_options import ProgramOptions
        >>> @with_options(program=ProgramOptions)
        ... def devices(program: ProgramOptions) -> None:
        ...     print(program.devices, program.words())
        >>> devices(devices=8, target=None, mesh=None, layout=None, mode=None, schedule=None, compiler_options="preset")
        8 ['--devices', '8']
    """
    shared = {
        parameter: {
            name: _parameter(declared, each) for name, declared in options_in(each).items() if name not in without
        }
        for parameter, each in declaring.items()
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        parameters = {
            one.name: one.replace(kind=Parameter.KEYWORD_ONLY)
            for name, each in own.items()
            for one in (shared[name].values() if name in shared else [each])
        }
        names = [name for name in parameters if name not in (before or {})]
        for moved, following in (before or {}).items():
            names.insert(names.index(following), moved)

        @functools.wraps(command)
        def with_values(**values: Any) -> None:
            for parameter, each in declaring.items():
                given = {name: values.pop(name) for name in shared[parameter]}
                values[parameter] = each(**{name: value for name, value in given.items() if value is not None})
            command(**values)

        # typer reads a command's options from its signature.
        with_values.__signature__ = inspect.Signature([parameters[name] for name in names])  # pyright: ignore[reportAttributeAccessIssue]
        with_values.__annotations__ = {name: parameters[name].annotation for name in names}
        return with_values

    return decorate


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
AllOption = Annotated[
    bool,
    typer.Option("--all", help="Print all of it; by default what is longer than 60 lines is cut to what matters most."),
]
"""The option `--all` of a command whose answer may be long."""
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
    loaded = load_recipe(context, recipe, options)
    from outlay.recipes.prepare import prepare_with

    return prepare_with(loaded, options)


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
