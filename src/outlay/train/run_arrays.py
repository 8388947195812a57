"""Remove what a run has left in its folder: the arrays that it lists, TensorBoard's files, and nothing beside them.

A user may keep files of their own in these folders, under any name. What was written is known by lists: a recording's
`zarr.json` names its arrays, and what was collected has the number of a checkpoint of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outlay.core.output_file import open_plain

GROUP = "zarr.json"
"""The file of a Zarr group or array that says what it is."""

STEPS = "steps"
"""The name of the array of steps in a recording on disk; without dot or colon it cannot collide with an address."""

_EVENTS = "events.out.tfevents."  # how the names of TensorBoard's files begin

_CHUNK = re.compile(r"\d+(\.__lock)?")  # a killed run may leave the lock of a chunk


def addresses_in(facts: Any) -> list[str]:
    """Return the addresses of the recorded arrays from what the file of a recording says.

    Raises:
        ValueError: an address leads out of the folder: the file may come from anywhere.
        KeyError: it is of something else.
        TypeError: likewise.
    """
    names = [str(name) for name in facts["attributes"]["addresses"]]
    if any("/" in name or name.startswith(".") for name in names):
        raise ValueError("an address leads out of the folder")
    return names


def arrays_of(recording: Path) -> list[str]:
    """Return the names of the arrays that a recording lists; none if it is not one."""
    try:
        with open_plain(recording / GROUP) as file:
            return [*addresses_in(json.loads(file.read())), STEPS]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def remove_recording(folder: Path) -> None:
    """Remove the arrays that a recording lists, and its folder if it is empty then.

    Raises:
        OSError: something of it cannot be removed.
    """
    names = arrays_of(folder)
    for name in names:
        _remove_array(folder / name)
    if names:
        (folder / GROUP).unlink()
    _remove_empty(folder)


def remove_collected(folder: Path, steps: Iterable[int]) -> None:
    """Remove what was collected up to these steps, and the folder if it is empty then.

    Args:
        folder: where a run collects.
        steps: those with a checkpoint of the run.

    Raises:
        OSError: something cannot be removed.
    """
    for step in steps:
        (folder / f"{step}.npz").unlink(missing_ok=True)
    _remove_empty(folder)


def _remove_array(array: Path) -> None:
    chunks = array / "c"
    if array.is_symlink() or not (array / GROUP).is_file():
        return
    if not chunks.is_symlink():
        for path, _, files in os.walk(chunks, topdown=False):  # which enters no link
            for name in files:
                if _CHUNK.fullmatch(name):
                    os.unlink(os.path.join(path, name))
            _remove_empty(Path(path))
    (array / GROUP).unlink()
    _remove_empty(array)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not empty: it has files of somebody else
        folder.rmdir()


def remove_events(folder: Path) -> None:
    """Remove TensorBoard's files of a run, and their folder if it is empty then.

    Raises:
        OSError: something cannot be removed.
    """
    for path in folder.iterdir():
        if path.name.startswith(_EVENTS) and not path.is_dir():
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def links_below(folder: Path) -> list[Path]:
    """List the links in a folder and below it; none if it is not there."""
    links: list[str] = []
    for path, folders, files in os.walk(folder):
        links += [whole for name in (*folders, *files) if os.path.islink(whole := os.path.join(path, name))]
    return [Path(path) for path in links]
