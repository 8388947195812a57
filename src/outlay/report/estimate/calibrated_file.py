"""The file of measured targets: written by `outlay calibrate` alone, so that a user's own file keeps its comments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outlay.core.errors import TargetError
from outlay.core.output_file import write_output
from outlay.meshes.hardware_file import read_tables

_HEAD = (
    "# Written by `outlay calibrate`, which replaces what it measures again. Your own numbers go into targets.toml.\n"
)


def put_table(path: Path, key: str, table: Mapping[str, Any], *, force: bool = False) -> None:
    """Write one table of a file, keeping the others.

    Args:
        path: the file.
        key: the name of the table.
        table: what it holds.
        force: write to a file that Outlay did not make, too.

    Raises:
        TargetError: the file is no TOML, or cannot be read, or its folder not be made.
        OutputError: it cannot be written, or Outlay did not make it.
    """
    tables = read_tables(path) if path.is_file() else {}
    tables[key] = dict(table)
    text = _HEAD + "".join("\n" + "\n".join(_lines(name, values)) + "\n" for name, values in tables.items())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TargetError(f"{path.parent} cannot be made: {error.strerror}\n  cure: --output FILE") from error
    write_output(path, text, force=force)


def _lines(name: str, table: Mapping[str, Any]) -> Iterator[str]:
    """A table in TOML: its own values, then the tables in it."""
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if plain or not table:
        yield f"[{name}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {json.dumps(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _lines(f"{name}.{_key(key)}", value)


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else json.dumps(name)
