"""Options of a recipe function: on the command line `--model small` for `model="small"`; `choose` tries several."""

from __future__ import annotations

import inspect
import itertools
import keyword
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from outlay.core.error_types import RecipeError
from outlay.core.guesses import OPTIONS
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean

VARIED: Mapping[str, Mapping[type, Sequence[Any]]] = {
    "remat": {bool: (False, True), str: ("none", "attention", "products", "full")},
    "accumulate": {int: (1, 2, 4, 8)},
}
"""Options that a search varies if a recipe function has them, by name and type."""

SEVERAL = ("batch", "batch_size", *VARIED)
"""Options that may be given several values: the work per example stays the same, so times can be compared."""


def recipe_arguments(
    function: Callable[..., Any], name: str, words: Sequence[str], known: Sequence[str] = ()
) -> dict[str, Any]:
    """Parse the words of a command line into keyword arguments of a recipe function.

    A parameter is an option by its name, `from_` being `--from`; its annotation says how the value is read:
    `Literal[...]`, `int`, `float`, `str`, `bool` (`--remat`, `--no-remat`), or one of these or None; `list[str]` is an
    option that may be repeated.

    Args:
        function: the recipe function.
        name: what the user called it, for messages.
        words: what was left of the command line, such as `["--model", "small"]`.
        known: the command's own options, which a mistyped word may have meant.

    Raises:
        RecipeError: there is no such option, or a value has the wrong type; all of them are listed.

    >>> def recipe(size: Literal["tiny", "1b"] = "tiny", remat: bool = False, accumulate: int = 1): ...
    >>> recipe_arguments(recipe, "lm", ["--size=1b", "--remat", "--accumulate", "4"])
    {'size': '1b', 'remat': True, 'accumulate': 4}
    """
    parameters = parameter_types(function)
    arguments: dict[str, Any] = {}
    problems = []
    for option, value in _pairs(words):
        try:
            parameter, read = _read(option, value, parameters, known)
        except ValueError as problem:
            problems.append(f"  {problem}")
        else:
            arguments[parameter] = [*arguments.get(parameter, []), *read] if isinstance(read, list) else read
    if problems:
        raise RecipeError("\n".join([f"{name}: {counted(len(problems), 'option')} cannot be used", *problems]))
    return arguments


def parameter_types(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters of a recipe function that can be set by name, with their annotations; `str` without one."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters
    return {name: hints.get(name, str) for name, parameter in parameters.items() if parameter.kind in named}


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a recipe function's parameters, by name."""
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}


def without_options(words: Sequence[str], names: Collection[str]) -> list[str]:
    """Remove options, named as parameters are, from the words of a command line.

    >>> without_options(["--model", "tiny", "--batch=64", "--no-remat"], ["batch", "remat"])
    ['--model', 'tiny']
    """
    left: list[str] = []
    for option, value in _pairs(words):
        name = option.removeprefix("--").replace("-", "_")
        if name not in names and name.removeprefix("no_") not in names:
            left += [option] if value is None else [option, value]
    return left


def several_values(function: Callable[..., Any], words: Sequence[str]) -> tuple[dict[str, list[int]], list[str]]:
    """Separate the options that are given several values from the other words of a command line.

    Args:
        function: the recipe function.
        words: its options, such as `["--model", "tiny", "--batch", "8,16,32"]`.

    >>> def recipe(model: str = "tiny", batch: int | None = None): ...
    >>> several_values(recipe, ["--model", "tiny", "--batch", "8,16,32"])
    ({'batch': [8, 16, 32]}, ['--model', 'tiny'])
    """
    several = split_values(function, words, SEVERAL)
    return several, without_options(words, several)


def split_values(function: Callable[..., Any], words: Sequence[str], names: Collection[str]) -> dict[str, list[int]]:
    """Return the whole-number options that are given several values, as in `--batch 8,16,32`.

    Args:
        function: the recipe function.
        words: what was left of the command line.
        names: the options that may be, named as parameters are.

    >>> def recipe(batch: int = 8, remat: str = "none"): ...
    >>> split_values(recipe, ["--batch", "8,16", "--remat", "queries,keys"], ["batch", "remat"])
    {'batch': [8, 16]}
    """
    kinds = parameter_types(function)
    numbers = {name for name in names if int in alternatives(kinds.get(name))}
    pairs = ((option.removeprefix("--").replace("-", "_"), value) for option, value in _pairs(words))
    several = {name: value.split(",") for name, value in pairs if name in numbers and value and "," in value}
    # A value that is not a number is reported where all options are read.
    return {
        name: list(dict.fromkeys(map(int, values)))
        for name, values in several.items()
        if all(value.strip().isdecimal() for value in values)
    }


def option_sets(
    function: Callable[..., Any], given: Mapping[str, Any], several: Mapping[str, Sequence[Any]]
) -> list[tuple[tuple[str, Any], ...]]:
    """Return every combination of the varied options; defaults that the user did not ask for are left out.

    Args:
        function: the recipe function.
        given: options that the user gives one value.
        several: options that the user gives several.
    """
    usual = defaults(function)
    own = {name: values for name, values in option_values(function).items() if name not in given}
    varied = {**several, **{name: values for name, values in own.items() if name not in several}}
    return [
        tuple(
            (name, value)
            for name, value in zip(varied, values, strict=True)
            if name in several or value != usual.get(name)
        )
        for values in itertools.product(*varied.values())
    ]


def option_values(function: Callable[..., Any]) -> dict[str, Sequence[Any]]:
    """Return the varied options of a recipe function with their values, most memory first."""
    types = parameter_types(function)
    return {name: values[types[name]] for name, values in VARIED.items() if types.get(name) in values}


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Iterate over options and their values; None for an option without a value."""
    left = list(words)
    while left:
        option, equals, value = left.pop(0).partition("=")
        follows = not equals and left and not left[0].startswith("--")  # one dash may begin a negative number
        yield option, left.pop(0) if follows else value if equals else None


def _read(option: str, value: str | None, parameters: dict[str, Any], known: Sequence[str]) -> tuple[str, Any]:
    if not option.startswith("--"):
        raise ValueError(f"{option!r} is not an option: write --name value")
    name = option[2:].replace("-", "_")
    name += "_" if keyword.iskeyword(name) else ""
    negated = name.removeprefix("no_")
    if name not in parameters and negated != name and parameters.get(negated) is bool and value is None:
        return negated, False
    if name not in parameters:
        own = [parameter.rstrip("_").replace("_", "-") for parameter in parameters]
        options = [*own, *(one.removeprefix("--") for one in known)]
        if option[2:] in OPTIONS and option[2:] not in options:
            raise ValueError(f"there is no option {option}: write {OPTIONS[option[2:]]}")
        raise ValueError(f"there is no option {option}: {did_you_mean(option[2:], options, mark='--')}")
    return name, _value(option, value, parameters[name])


def _value(option: str, value: str | None, kind: Any) -> Any:
    kinds = [k for k in alternatives(kind) if k is not type(None)]
    if kinds == [bool] and value is None:
        return True
    if value is None:
        raise ValueError(f"{option} needs a value: {option} {_example(kinds)}")
    for candidate in kinds:
        try:
            return _convert(value, candidate)
        except (ValueError, KeyError):  # KeyError: not one of the choices
            continue
    raise ValueError(f"{option} {value}: expected {_example(kinds)}")


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union; of any other type, that type alone.

    >>> alternatives(int | None)
    (<class 'int'>, <class 'NoneType'>)
    """
    # Before Python 3.14, `Optional[int]` and `int | None` are of different types.
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _convert(value: str, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal:
        return {str(choice): choice for choice in typing.get_args(kind)}[value]
    if kind is bool:  # `bool("false")` is True
        return {"true": True, "false": False}[value.lower()]
    if kind in (int, float, str):
        return kind(value)
    if kind == list[str]:
        return [value]
    raise ValueError(f"a {kind} cannot be written on a command line")


def _example(kinds: Sequence[Any]) -> str:
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list[str]: "a text"}
    return " or ".join(
        "one of " + ", ".join(map(str, typing.get_args(kind)))
        if typing.get_origin(kind) is Literal
        else words.get(kind, "a value")
        for kind in kinds
    )
