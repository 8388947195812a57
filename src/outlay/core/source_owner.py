"""Whose a source file is: Outlay's, an installed package's, Python's own, or somebody's program.

Folders decide, not names in a path: a project may be called `outlay` or `jax`, lie in a folder `site-packages`, or be
reached through a link. A folder counts as it was named and with its links resolved, and so does a file.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import site
import sys
import sysconfig
from pathlib import Path

OUTLAY = Path(__file__).parents[1]
"""The folder of this package."""

# Packages of another Python: in a program that it compiled, or on a path that was added to this one.
_OTHER_PYTHON = re.compile(r"/lib(64)?/python3[^/]*/(site|dist)-packages/|\\Lib\\site-packages\\")
_INSTALLED_BELOW = ("site-packages/", "dist-packages/")


def is_below(file: str, *folders: str | os.PathLike[str]) -> bool:
    """Return whether a file lies in one of these folders, or in one below them.

    >>> is_below("/home/me/outlay_models/net.py", "/home/me/outlay")
    False
    """
    return any(part_below(file, os.fspath(folder)) is not None for folder in folders)


@functools.lru_cache(maxsize=65536)
def part_below(file: str, folder: str) -> str | None:
    """Return the path of a file from a folder on, with `/` between its parts; None if it is not below the folder."""
    starts = _names_of(folder)
    for name in _names_of(file):
        for start in starts:
            inside = name.removeprefix(start.rstrip(os.sep) + os.sep)
            if inside != name:
                return inside.replace(os.sep, "/")
    return None


@functools.lru_cache(maxsize=65536)
def _names_of(path: str) -> tuple[str, ...]:
    """Return a path as it is written, and with its links resolved."""
    names = [path]
    with contextlib.suppress(OSError, ValueError):  # the working folder has been removed, or it is no path
        names += [os.path.abspath(path), os.path.realpath(path)]
    return tuple(dict.fromkeys(names))


def part_of_outlay(file: str) -> str | None:
    """Return the path of a file within this package, such as `train/step.py`; None if it is not Outlay's."""
    return None if file.startswith("<") else part_below(file, str(OUTLAY))


@functools.lru_cache(maxsize=65536)
def is_installed(file: str) -> bool:
    """Return whether a file belongs to a package that was installed for this Python or another one."""
    return is_below(file, *_package_folders()) or _OTHER_PYTHON.search(file) is not None


@functools.lru_cache(maxsize=65536)
def is_standard(file: str) -> bool:
    """Return whether a file belongs to Python's standard library."""
    if file.startswith("<frozen"):
        return True
    parts = [part_below(file, folder) for folder in _standard_folders()]
    return any(part is not None and not part.startswith(_INSTALLED_BELOW) for part in parts)


def is_of_package(file: str, name: str) -> bool:
    """Return whether a file belongs to the package that is imported by this name here.

    >>> import jax
    >>> is_of_package(jax.__file__, "jax"), is_of_package("/home/me/jax/net.py", "jax")
    (True, False)
    """
    return is_below(file, *_folders_of_package(name, sys.modules.get(name) is not None))


@functools.cache
def _folders_of_package(name: str, is_imported: bool) -> tuple[str, ...]:
    try:
        spec = importlib.util.find_spec(name)  # imports nothing: of a package in a package it would
    except (ImportError, ValueError):
        return ()
    return tuple(spec.submodule_search_locations or ()) if spec else ()


@functools.cache
def _package_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths["purelib"], paths["platlib"], *site.getsitepackages(), site.getusersitepackages()})


@functools.cache
def _standard_folders() -> tuple[str, ...]:
    return tuple({sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib")})
