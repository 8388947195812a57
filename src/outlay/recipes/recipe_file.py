"""The file of a user's recipe: it is imported, and what fails in it is shown by its line."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from outlay.core.error_types import RecipeError
from outlay.core.output_file import real_path
from outlay.core.source_owner import is_standard
from outlay.core.suggest import did_you_mean
from outlay.recipes.recipe import Recipe

RAISED = (Exception, SystemExit)
"""What a user's file may end with instead of being imported; Ctrl-C is not among it."""

LOADED: set[str] = set()
"""The files that were loaded."""


def function_in(file: str, name: str) -> Callable[..., Any]:
    """Import a file, and return the function of this name in it.

    Raises:
        RecipeError: the file does not import, or has no such function.
    """
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


def made_by(text: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Recipe:
    """Return the recipe that a user's function makes.

    Args:
        text: what the user typed.
        function: the function.
        arguments: its arguments, by name.

    Raises:
        RecipeError: it fails, or returns something else.
    """
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
