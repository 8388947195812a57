"""Find a recipe by what the user typed: the name of one of ours, `path/to/file.py:function`, or a file that is one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outlay.core.error_types import RecipeError
from outlay.core.suggest import did_you_mean
from outlay.recipes.arguments import recipe_arguments
from outlay.recipes.load_file import RAISED, last_line_in, load_file
from outlay.recipes.plugins import FILE_WORDS, FILES, RECIPES, load
from outlay.recipes.recipe import Recipe


def find_recipe(text: str, words: Sequence[str] = (), known: Sequence[str] = ()) -> Recipe:
    """The recipe of a name, of `path/to/file.py:function` or of a file that is one, made with its own options.

    Args:
        text: what the user typed.
        words: options of the recipe itself, such as `["--model", "small"]`.
        known: the command's own options, which a mistyped word may have meant.

    Raises:
        RecipeError: there is no such recipe or option, or the file or function that should make it does not.

    >>> find_recipe("digits").default_layout
    'dp'
    """
    function = find_function(text)
    arguments = recipe_arguments(function, text, words, known)
    _refuse_missing(text, function, arguments)
    if text in RECIPES or _file_ending(text):
        return function(**arguments)
    try:
        recipe = function(**arguments)
    except RAISED as error:
        raise RecipeError(f"{text}() raised an error\n{last_line_in(_file_of(function), error)}") from error
    if not isinstance(recipe, Recipe):
        raise RecipeError(
            f"{text}() returned a {type(recipe).__name__}, not a Recipe"
            "\n  fix: return outlay.Recipe(...) or outlay.Recipe.training(...)"
        )
    return recipe


def find_function(text: str) -> Callable[..., Any]:
    """The function that makes a recipe, found but not called.

    Raises:
        RecipeError: there is none.
    """
    if ".py" in text:
        file, _, function = text.rpartition(":") if not text.endswith(".py") else (text, "", "")
        return _in_file(file, function)
    if ending := _file_ending(text):
        return load(FILES[ending])(Path(text))
    if text not in RECIPES:
        raise RecipeError(
            f"there is no recipe {text!r}: {did_you_mean(text, RECIPES)}"
            "\n  fix: name one of these, a function of your own as path/to/file.py:function, or "
            f"{FILE_WORDS}"
        )
    return load(RECIPES[text])


def _file_ending(text: str) -> str | None:
    """How the file ends that the user typed, if it is a recipe by itself."""
    return next((ending for ending in FILES if text.endswith(ending)), None)


def _in_file(file: str, name: str) -> Callable[..., Any]:
    module = load_file(file)
    functions = [
        member_name
        for member_name, member in inspect.getmembers(module, inspect.isfunction)
        if member.__module__ == module.__name__ and not member_name.startswith("_")
    ]
    if not name:
        known = ", ".join(f"{file}:{function}" for function in functions) or "it has no functions"
        raise RecipeError(f"{file} is a file; which of its functions makes the recipe?\n  fix: {known}")
    if not hasattr(module, name):
        raise RecipeError(f"{file} has no function {name!r}: {did_you_mean(name, functions)}")
    function = getattr(module, name)
    if not callable(function):
        raise RecipeError(
            f"{name!r} in {file} is a {type(function).__name__}, not a function"
            f"\n  fix: def {name}(): return outlay.Recipe(...)"
        )
    return function


def _refuse_missing(text: str, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [name for name in required if name not in arguments]
    if missing:
        name = getattr(function, "__name__", "recipe")
        raise RecipeError(
            f"{text} takes {', '.join(missing)}, for which no value was given"
            f"\n  fix: {' '.join(f'--{m.replace(chr(95), chr(45))} VALUE' for m in missing)}, or a default: "
            f"def {name}({', '.join(f'{m}=...' for m in missing)})"
        )


def _file_of(function: Callable[..., Any]) -> str:
    return inspect.getsourcefile(inspect.unwrap(function)) or ""
