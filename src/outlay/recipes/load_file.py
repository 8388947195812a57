"""Import a user's file, and say which of its lines fails when it does not import."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from outlay.core.error_types import RecipeError

LOADED: set[str] = set()
"""The files that were loaded."""

RAISED = (Exception, SystemExit)
"""What a user's file may end with instead of being imported; Ctrl-C is not among it."""


def load_file(file: str) -> ModuleType:
    """The module of a Python file, imported as `python file.py` would: neighbouring files can be imported too.

    Raises:
        RecipeError: there is no such file, or it does not import; the message shows the line of it that fails.
    """
    try:
        path = Path(file).resolve()
        is_there = path.is_file()
    except (OSError, ValueError) as error:  # a name that no file can have
        raise RecipeError(f"{file[:60]!r} is no file: {error}\n  fix: a recipe is path/to/file.py:function") from error
    if not is_there:
        raise RecipeError(f"there is no file {file}{_nearby(path)}\n  fix: a recipe is path/to/file.py:function")
    LOADED.add(str(path))
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(_behind_the_library(), folder)
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{file} is no Python file\n  fix: a recipe is path/to/file.py:function")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # where dataclasses and pickle look for the module of a class
    try:
        spec.loader.exec_module(module)
    except RAISED as error:
        _put_back(name, before)
        raise RecipeError(f"{file} does not import\n{last_line_in(str(path), error)}") from error
    return module


def last_line_in(file: str, error: BaseException) -> str:
    """The innermost line of a file that an error passed through, and the error, indented for a message."""
    what = f"  {type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"  {error.filename}:{error.lineno}: {(error.text or '').strip()}\n  {type(error).__name__}: {error.msg}"
    path = str(Path(file).resolve())
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"  {path}:{frames[-1].lineno}: {frames[-1].line}\n{what}" if frames else what


def _put_back(name: str, before: ModuleType | None) -> None:
    if before is None:
        del sys.modules[name]
    else:
        sys.modules[name] = before


def _module_name(path: Path) -> str:
    """That of the file, unless Python or a package has a module of that name, which others must go on finding."""
    taken = sys.modules.get(path.stem)
    is_other = taken is not None and getattr(taken, "__file__", None) != str(path)
    return f"recipe_in_{path.stem}" if is_other or path.stem in sys.stdlib_module_names else path.stem


def _behind_the_library() -> int:
    """Where in `sys.path` a folder goes whose files must not stand in for modules of Python itself."""
    library = sysconfig.get_path("stdlib")
    own = [at for at, entry in enumerate(sys.path) if entry.startswith(library) and "site-packages" not in entry]
    return max(own, default=-1) + 1


def _nearby(path: Path) -> str:
    found = sorted(entry.name for entry in path.parent.glob("*.py")) if path.parent.is_dir() else []
    return f"; {path.parent} holds {', '.join(found[:8])}" if found else ""
