"""Find a recipe by what the user typed: the name of one of ours, or `path/to/file.py:function`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from outlay.core.errors import RecipeError
from outlay.core.suggest import did_you_mean
from outlay.recipes.load_file import RAISED, last_line_in, load_file
from outlay.recipes.recipe import Recipe

OURS = {"digits": "outlay.recipes.digits:digits"}
"""The recipes that come with Outlay: name to module and function."""


def find_recipe(text: str) -> Recipe:
    """The recipe of a name or of `path/to/file.py:function`.

    Args:
        text: what the user typed.

    Raises:
        RecipeError: there is no such recipe, or the file or function that should make it does not.
    """
    if ".py" in text:
        file, _, function = text.rpartition(":") if not text.endswith(".py") else (text, "", "")
        return _from_file(file, function)
    if text not in OURS:
        raise RecipeError(
            f"there is no recipe {text!r}: {did_you_mean(text, OURS)}"
            "\n  cure: name one of these, or a function of your own as path/to/file.py:function"
        )
    module, _, function = OURS[text].partition(":")
    return getattr(importlib.import_module(module), function)()


def _from_file(file: str, function: str) -> Recipe:
    module = load_file(file)
    functions = [
        name
        for name, member in inspect.getmembers(module, inspect.isfunction)
        if member.__module__ == module.__name__ and not name.startswith("_")
    ]
    if not function:
        known = ", ".join(f"{file}:{name}" for name in functions) or "it has no functions"
        raise RecipeError(f"{file} is a file; which of its functions makes the recipe?\n  cure: {known}")
    if not hasattr(module, function):
        raise RecipeError(f"{file} has no function {function!r}: {did_you_mean(function, functions)}")
    recipe = _call(file, function, getattr(module, function))
    if not isinstance(recipe, Recipe):
        raise RecipeError(
            f"{file}:{function}() returned a {type(recipe).__name__}, not a Recipe"
            "\n  cure: return outlay.Recipe(...) or outlay.Recipe.training(...)"
        )
    return recipe


def _call(file: str, name: str, function: Callable[[], Any]) -> Any:
    if not callable(function):
        raise RecipeError(
            f"{name!r} in {file} is a {type(function).__name__}, not a function"
            f"\n  cure: def {name}(): return outlay.Recipe(...)"
        )
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if required:
        raise RecipeError(
            f"{file}:{name} takes {', '.join(required)}, but a recipe function is called without arguments"
            f"\n  cure: give each a default: def {name}({', '.join(f'{r}=...' for r in required)})"
        )
    try:
        return function()
    except RAISED as error:
        raise RecipeError(f"{file}:{name}() raised an error\n{last_line_in(file, error)}") from error
