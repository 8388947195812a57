"""Find a recipe by name, as `path/to/file.py:function`, or as a file that is one, and import the user's file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from outlay.core.error_types import RecipeError
from outlay.core.output_file import real_path
from outlay.core.source_owner import is_standard
from outlay.core.suggest import did_you_mean
from outlay.recipes.arguments import parameter_types, recipe_arguments
from outlay.recipes.plugins import (
    ABSENT,
    FILE_WORDS,
    ending_of,
    maker_of,
    not_installed,
    recipe_named,
    recipes,
)
from outlay.recipes.recipe import Recipe

RAISED = (Exception, SystemExit)
"""What a user's file may end with instead of being imported; Ctrl-C is not among it."""

LOADED: set[str] = set()
"""The files that were loaded."""


def find_recipe(
    text: str,
    words: Sequence[str] = (),
    known: Sequence[str] = (),
    *,
    record: Sequence[str] = (),
    stride: int | None = None,
) -> Recipe:
    """Make the recipe of a name, of `path/to/file.py:function` or of a file that is one, with its own options.

    Args:
        text: what the user typed.
        words: options of the recipe itself, such as `["--model", "small"]`.
        known: the command's own options, which a mistyped word may have meant.
        record: patterns of what a run records; those of the recipe itself if there are none.
        stride: after how many steps.

    Raises:
        RecipeError: there is no such recipe or option, or the file or function that should make it does not.

    >>> find_recipe("digits").default_layout
    'dp'
    """
    function = find_function(text)
    is_recorded = bool(record) or stride is not None
    takes_record = is_recorded and "record" in parameter_types(function)  # else the recipe that it makes is told
    if takes_record:
        words = [*words, *(word for pattern in record for word in ("--record", pattern))]
        words += [] if stride is None else ["--stride", str(stride)]
    arguments = recipe_arguments(function, text, words, known) if words else {}
    _check_required(text, function, arguments)
    recipe = _made(text, function, arguments)
    return with_recording(recipe, record, stride) if is_recorded and not takes_record else recipe


def name_of(recipe: str | Callable[..., Recipe]) -> str:
    """Return the name by which other processes can find a recipe.

    Raises:
        RecipeError: it is a function that no file has at its top level.
    """
    if isinstance(recipe, str):
        return recipe
    if not (inspect.isroutine(recipe) or inspect.isroutine(inspect.unwrap(recipe))):
        raise RecipeError(
            f"this is a {type(recipe).__name__}, which other processes cannot make\n  fix: 'path/to/file.py:function', "
            "or the function: one that returns outlay.Recipe.training(...) or outlay.Recipe(...)"
        )
    file, name = inspect.getsourcefile(inspect.unwrap(recipe)), getattr(recipe, "__qualname__", "")
    if not file or not Path(file).is_file() or not name.isidentifier():
        raise RecipeError(
            f"{name or recipe!r} is not at the top level of a file, where other processes could find it"
            "\n  fix: define the function in a file, and pass it or 'path/to/file.py:function'"
        )
    return f"{file}:{name}"


def with_recording(recipe: Recipe, record: Sequence[str] = (), stride: int | None = None) -> Recipe:
    """Return a recipe that records what is asked for, and as before what is not.

    Raises:
        RecipeError: there is a stride, and nothing that is recorded.
    """
    if not record and stride is None:
        return recipe
    if not (record or recipe.record):
        raise RecipeError(
            f"stride={stride}, and {recipe.name!r} records nothing\n  fix: --record too, such as 'params.**.bias'"
        )
    return recipe.recording(record or recipe.record, recipe.stride if stride is None else stride)


def _made(text: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Recipe:
    if recipe_named(text) or ending_of(text):  # installed, whose errors say what is wrong by themselves
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


def _check_required(text: str, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
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


def find_function(text: str) -> Callable[..., Any]:
    """Find the function that makes a recipe, without calling it.

    Raises:
        RecipeError: there is none.
    """
    if ".py" in text:
        file, _, function = text.rpartition(":") if not text.endswith(".py") else (text, "", "")
        return _in_file(file, function)
    if ending := ending_of(text):
        return maker_of(text, ending)(Path(text))
    if reference := recipe_named(text):
        return resolve_name(reference)
    if text in ABSENT:
        raise RecipeError(not_installed(text, text))
    raise RecipeError(
        f"there is no recipe {text!r}: {did_you_mean(text, recipes())}"
        f"\n  fix: name one of these, a function of your own as path/to/file.py:function, or {FILE_WORDS}"
    )


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


def _file_of(function: Callable[..., Any]) -> str:
    return inspect.getsourcefile(inspect.unwrap(function)) or ""


def load_file(file: str) -> ModuleType:
    """Import a Python file as `python file.py` would: neighbouring files can be imported too.

    Raises:
        RecipeError: there is no such file, or it does not import; the message shows the line of it that fails.
    """
    try:
        path = real_path(file)
        is_there = path.is_file()
    except (OSError, ValueError) as error:  # a name that no file can have
        what = f"{file[:60]!r} is not a file: {error}"
        raise RecipeError(f"{what}\n  fix: a recipe is path/to/file.py:function") from error
    if not is_there:
        raise RecipeError(f"there is no file {file}{_files_nearby(path)}\n  fix: a recipe is path/to/file.py:function")
    LOADED.add(str(path))
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(_index_after_library(), folder)  # before installed packages, as `python file.py` has it
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{file} is not a Python file\n  fix: a recipe is path/to/file.py:function")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # where dataclasses and pickle look for the module of a class
    try:
        spec.loader.exec_module(module)
    except RAISED as error:
        # As after a failed import of Python's: half a module must not be found by the next one.
        _restore_module(name, before)
        raise RecipeError(f"{file} does not import\n{last_line_in(str(path), error)}") from error
    return module


def last_line_in(file: str, error: BaseException) -> str:
    """Return the innermost line of a file that an error passed through, and the error, indented for a message."""
    what = f"  {type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"  {error.filename}:{error.lineno}: {(error.text or '').strip()}\n  {type(error).__name__}: {error.msg}"
    path = str(Path(file).resolve())
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"  {path}:{frames[-1].lineno}: {frames[-1].line}\n{what}" if frames else what


def _restore_module(name: str, before: ModuleType | None) -> None:
    if before is None:
        del sys.modules[name]
    else:
        sys.modules[name] = before


def _module_name(path: Path) -> str:
    """Return the file's own name, unless that would hide a module of Python or of a package."""
    taken = sys.modules.get(path.stem)
    is_other = taken is not None and getattr(taken, "__file__", None) != str(path)
    return f"recipe_in_{path.stem}" if is_other or path.stem in sys.stdlib_module_names else path.stem


def _index_after_library() -> int:
    """Return the index in `sys.path` after Python's own folders: a user's file must not hide a standard module."""
    own = [at for at, entry in enumerate(sys.path) if is_standard(f"{entry}/module.py")]
    return max(own, default=-1) + 1


def _files_nearby(path: Path) -> str:
    names = sorted(entry.name for entry in path.parent.glob("*.py")) if path.parent.is_dir() else []
    return f"; {path.parent} holds {', '.join(names[:8])}" if names else ""
