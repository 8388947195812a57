"""Python files that a Brain's file names: they register modules of one's own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from outlay.core.errors import BrainError


def import_file(path: Path) -> None:
    """Run a Python file, so that the classes that it registers have their names; once in a process.

    Args:
        path: the file.

    Raises:
        BrainError: it is not there, or fails.
    """
    path = path.resolve()
    if any(getattr(module, "__file__", None) == str(path) for module in list(sys.modules.values())):
        return
    if not path.is_file():
        raise BrainError(f"there is no file {path.name}\na path from the folder of this file to a Python file")
    name = f"outlay_imported_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BrainError(f"{path.name} is no Python file\na path to a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BrainError(f"{path.name} fails: {type(error).__name__}: {error}\ncorrect it; it runs as it is") from error
