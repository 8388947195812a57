"""Import a user's file, and say which of its lines fails when it does not import."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from outlay.core.errors import RecipeError

RAISED = (Exception, SystemExit)
"""What a user's file may end with instead of being imported; Ctrl-C is not among it."""


def load_file(file: str) -> ModuleType:
    """The module of a Python file, imported as `python file.py` would: neighbouring files can be imported too.

    Raises:
        RecipeError: there is no such file, or it does not import; the message shows the line of it that fails.
    """
    path = Path(file).resolve()
    if not path.is_file():
        raise RecipeError(f"there is no file {file}{_nearby(path)}\n  cure: a recipe is path/to/file.py:function")
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{file} is no Python file\n  cure: a recipe is path/to/file.py:function")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # where dataclasses and pickle look for the module of a class
    try:
        spec.loader.exec_module(module)
    except RAISED as error:
        _put_back(path.stem, before)
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


def _nearby(path: Path) -> str:
    found = sorted(entry.name for entry in path.parent.glob("*.py")) if path.parent.is_dir() else []
    return f"; {path.parent} holds {', '.join(found[:8])}" if found else ""
