"""Inputs as text on a command line: `drive=0.5`, or the file that holds the array."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from outlay.core.errors import BrainError, Problem
from outlay.recipes.brain.recording.store import open_array


def read_inputs(words: Iterable[str]) -> dict[str, Any]:
    """Inputs by name from texts such as `drive=drive.npy` or `light=0.5`.

    Args:
        words: `NAME=NUMBER`, or `NAME=FILE` with a `.npy`, a `.npz` (the array of that name, or its only one), a `.csv`
            with one row a step, or the folder of a Zarr array.

    Raises:
        BrainError: a text is none of these, or a file cannot be read; all of them are listed.
    """
    found: dict[str, Any] = {}
    problems = []
    for word in words:
        name, equals, text = word.partition("=")
        try:
            if not equals or not name:
                raise ValueError("it names no input")
            found[name] = _value(name, text)
        except (OSError, ValueError, KeyError) as error:
            problems.append(
                Problem(
                    "input", word, f"it cannot be read: {error}", "NAME=NUMBER, or NAME=FILE (.npy, .npz, .csv or Zarr)"
                )
            )
    if problems:
        raise BrainError(f"{len(problems)} input(s) cannot be read", problems)
    return found


def _value(name: str, text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return _array(name, Path(text))


def _array(name: str, path: Path) -> np.ndarray:
    if path.is_dir():
        return np.asarray(open_array(path.resolve()).read().result())
    if not path.exists():
        raise ValueError(f"there is no file {path}")
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r", allow_pickle=False)
    if path.suffix == ".npz":
        arrays = np.load(path, allow_pickle=False)
        names = list(arrays)
        if name not in names and len(names) != 1:
            raise ValueError(f"it has no array {name!r}, only {', '.join(names)}")
        return arrays[name if name in names else names[0]]
    if path.suffix == ".csv":
        return _csv(path)
    raise ValueError(f"{path.suffix or 'no suffix'} is no format that is known")


def _csv(path: Path) -> np.ndarray:
    """One row a step; a first line of names is passed over."""
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    is_named = any(character.isalpha() for character in first.lower().replace("e", "").replace("nan", ""))
    return np.loadtxt(path, delimiter=",", ndmin=2, skiprows=int(is_named))
