"""Python files that a Brain's file names, with modules of one's own: they run only where the user trusts them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from outlay.brain.brain_error import BrainError


def import_file(folder: Path, name: str, *, trust: bool) -> None:
    """Run a Python file, so that the classes that it registers have their names; once in a process.

    Args:
        folder: of the Brain's file, which the Python file must lie in.
        name: its path from there.
        trust: whether the user trusts what the Brain's file names.

    Raises:
        BrainError: it is not trusted, lies elsewhere, is not there, or fails.
    """
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        what = f"{name} lies outside the folder of this file, where nothing is imported from"
        raise BrainError(f"{what}\nkeep the Python file beside the file of the Brain")
    if any(getattr(module, "__file__", None) == str(path) for module in list(sys.modules.values())):
        return
    if not trust:
        what = f"{path.name} is Python, and runs with all that you may do; files of Brains run nothing unasked"
        how = "read it, and then: outlay run FILE --trust, or outlay.brain.read_brain(path, trust=True)"
        raise BrainError(f"{what}\n{how}; outlay brain show and convert never run it")
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
