"""An option that is declared once: a field of a frozen class, a flag of a command, a keyword of a function."""

from __future__ import annotations

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from outlay.core.error_types import ArgumentError, RecipeError


@dataclass(frozen=True)
class Option:
    """What an option is, beside the name, the type and the default of its field.

    A field has one by its annotation, `steps: Annotated[int | None, Option("Steps to take.", "N")] = None`. Its module
    does without `from __future__ import annotations`, so that the annotation is a value.

    Attributes:
        help: what it does, in the help of the command and of the Python function.
        metavar: its value in the help of the command, such as `N`; empty for a flag without a value.
        unit: what its number counts, such as `steps` or `seconds`; empty for what is not a number.
        minimum: the smallest number that the command takes; None for no limit.
        kind: the type that a word on the command line is read as; None for that of the field.
        also: further flags, such as `--xla`.
        python: what Python takes or does beyond the command, as a sentence.
    """

    help: str
    metavar: str = ""
    unit: str = ""
    minimum: int | None = None
    kind: type | None = None
    also: tuple[str, ...] = ()
    python: str = ""


@dataclass(frozen=True)
class Declared:
    """An option with what its field says.

    Attributes:
        name: the name in Python.
        option: what else was declared of it.
        annotation: the type in Python; a text if that is not imported.
        default: the value of who does not give one.
    """

    name: str
    option: Option
    annotation: Any
    default: Any

    @property
    def flag(self) -> str:
        """Its name on the command line, such as `--checkpoint-every`."""
        return flag_of(self.name)

    @property
    def kind(self) -> type:
        """The type that a word on the command line is read as."""
        if self.option.kind is not None:
            return self.option.kind
        is_union = isinstance(self.annotation, types.UnionType)
        return typing.get_args(self.annotation)[0] if is_union else self.annotation

    @property
    def is_repeatable(self) -> bool:
        """Whether the command takes it several times, and Python a sequence."""
        return self.kind is list


def flag_of(name: str) -> str:
    """Return the flag of a field, such as `--checkpoint-every` of `checkpoint_every`."""
    return f"--{name.replace('_', '-')}"


@functools.cache
def options_in(declaring: type) -> Mapping[str, Declared]:
    """Return the options of a class of options by name, in their order; other fields are left out."""
    declared = {}
    for field in fields(declaring):
        option = next((each for each in getattr(field.type, "__metadata__", ()) if isinstance(each, Option)), None)
        if option is not None:
            declared[field.name] = Declared(field.name, option, _without_option(field.type), field.default)
    return declared


def given_in(options: Any, *but: str) -> dict[str, Any]:
    """Return the options whose value is not the default, by name.

    Args:
        options: a value of a class of options.
        *but: names to leave out.
    """
    values = {name: getattr(options, name) for name in options_in(type(options)) if name not in but}
    return {name: value for name, value in values.items() if value != options_in(type(options))[name].default}


def words_of_given(given: Mapping[str, Any]) -> list[str]:
    """Write options as they are typed; None and False are left out.

    Args:
        given: their values by name.

    Raises:
        RecipeError: some are objects that only this process has; all are listed.

    >>> words_of_given({"layout": "fsdp", "mode": None, "force": True, "record": ["params.**", "step"]})
    ['--layout', 'fsdp', '--force', '--record', 'params.**', '--record', 'step']
    """
    plain = str | int | float | Path | Sequence | None
    if objects := [name for name, value in given.items() if not isinstance(value, plain)]:
        raise RecipeError(
            f"processes of their own cannot be given this process's objects: {', '.join(objects)}"
            "\n  fix: as text or a number, as on the command line, or in the recipe's own function"
        )
    words: list[str] = []
    for name, value in given.items():
        if value is True:
            words.append(flag_of(name))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [word for each in value for word in (flag_of(name), each)]
        elif value is not None and value is not False:
            words += [flag_of(name), "off" if value == math.inf else str(value)]
    return words


Params = ParamSpec("Params")
Value = TypeVar("Value")
Answer = TypeVar("Answer")


def takes_fields_of(
    make: Callable[Params, Value], example: str, **renamed: str
) -> Callable[[Callable[[Value], Answer]], Callable[Params, Answer]]:
    """Return a decorator: a function of one value is called with the fields of its class, as keywords.

    The help of each option becomes a line of the docstring, after those of `Args:`.

    Args:
        make: the class.
        example: a call that works, for the answer to one that does not, as of `called_as`.
        **renamed: parameters that other libraries have, each with what to write here.
    """

    def decorate(function: Callable[[Value], Answer]) -> Callable[Params, Answer]:
        @functools.wraps(function)
        def call(*args: Params.args, **kwargs: Params.kwargs) -> Answer:
            try:
                value = make(*args, **kwargs)
            except TypeError as error:
                # Deeper than this frame alone, the call was right and a check of the value failed.
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise
                from outlay.core.public_names import refusal  # only a wrong call needs it

                words = str(error).replace(f"{make.__qualname__}.__init__()", f"{function.__qualname__}()")
                raise ArgumentError(refusal(call, args, kwargs, example, renamed, words)) from None
            return function(value)

        parameters = [
            one.replace(annotation=_without_option(one.annotation))
            for one in inspect.signature(make).parameters.values()
        ]
        returned = function.__annotations__.get("return", inspect.Signature.empty)
        call.__signature__ = inspect.Signature(parameters, return_annotation=returned)  # pyright: ignore[reportAttributeAccessIssue]
        call.__annotations__ = {**{one.name: one.annotation for one in parameters}, "return": returned}
        call.__doc__ = _with_options(function.__doc__, make)
        return call

    return decorate


def _without_option(annotation: Any) -> Any:
    origin = annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
    return getattr(origin, "__forward_arg__", origin)


_ARGS = "    Args:\n"


def _with_options(text: str | None, declaring: Any) -> str | None:
    """Add a line for each option to the arguments of a docstring; None where Python strips docstrings."""
    if text is None:
        return None
    head, args, rest = text.partition(_ARGS)
    own, blank, tail = rest.partition("\n\n")
    lines = [f"        {name}: {_sentences(each)}" for name, each in options_in(declaring).items()]
    return "".join([head, args, "\n".join([own, *lines]), blank, tail])


def _sentences(declared: Declared) -> str:
    """Return the help of an option for Python, with its unit if the help does not say it."""
    option = declared.option
    unit = f"In {option.unit}." if option.unit and option.unit.rstrip("s") not in option.help else ""
    return " ".join(part for part in (option.help, unit, option.python) if part)
