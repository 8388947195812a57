"""Options of a recipe that `outlay.choose` tries with several values: its own list of them, and what the user asks."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outlay.recipes.arguments import parameter_types, split_values, without_options

VARIED: Mapping[str, Mapping[type, Sequence[Any]]] = {
    "remat": {bool: (False, True), str: ("none", "attention", "products", "full")},
    "accumulate": {int: (1, 2, 4, 8)},
}
"""Options that are tried with several values where a recipe function has them, by name and type."""

SEVERAL = ("batch", "batch_size", *VARIED)
"""Options that may be given with several values: the work on an example stays the same, so times can be compared."""


def several_values(function: Callable[..., Any], words: Sequence[str]) -> tuple[dict[str, list[int]], list[str]]:
    """What the words of a command line give several values, and the words without these options.

    Args:
        function: the recipe function.
        words: its options, such as `["--model", "tiny", "--batch", "8,16,32"]`.

    >>> def recipe(model: str = "tiny", batch: int | None = None): ...
    >>> several_values(recipe, ["--model", "tiny", "--batch", "8,16,32"])
    ({'batch': [8, 16, 32]}, ['--model', 'tiny'])
    """
    several = split_values(function, words, SEVERAL)
    return several, without_options(words, several)


def option_sets(
    function: Callable[..., Any], given: Mapping[str, Any], several: Mapping[str, Sequence[Any]]
) -> list[tuple[tuple[str, Any], ...]]:
    """Every set of values of the options that are varied; a default that the user did not ask for is left out.

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
    """The options of a recipe function that are varied, with their values, those that take most memory first."""
    types = parameter_types(function)
    return {name: values[types[name]] for name, values in VARIED.items() if types.get(name) in values}


def defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of a recipe function's parameters, by name."""
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}
