"""Options of commands from the classes that declare them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from inspect import Parameter
from typing import Annotated, Any

import typer

from outlay.core.option import Declared, options_in


def command_option(declaring: type, name: str) -> Any:
    """Return an option as typer takes it, from the class that declares it.

    Args:
        declaring: the class of options.
        name: the name of its field.
    """
    declared = options_in(declaring)[name]
    option = declared.option
    return typer.Option(
        *(declared.flag, *option.also),
        metavar=option.metavar or None,
        help=option.help,
        min=option.minimum,
        parser=seconds if option.unit == "seconds" else None,
    )


def seconds(text: str) -> float:
    """Return a number of seconds; infinity for `off`."""
    if text == "off":
        return float("inf")
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.1 <= number < float("inf"):
        raise typer.BadParameter(f"{text!r} is neither a number of seconds, 0.1 or more, nor 'off'")
    return number


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
        >>> devices(devices=8, target=None, mesh=None, layout=None, mode=None, compiler_options="preset")
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
