"""Files of targets: reading one, and laying a user's file over the built-in tables."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outlay.core.error_types import TargetError
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.devices.hardware_keys import table_problems

Table = dict[str, Any]


def read_tables(path: Path) -> dict[str, Table]:
    """The tables of a file by key.

    Raises:
        TargetError: it cannot be read, is no TOML, or holds something else than tables.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise TargetError(f"{path} is not TOML: {error}") from error
    except RecursionError as error:
        raise TargetError(f"{path} is no file of hardware: its lists stand in one another, hundreds deep") from error
    if bare := [key for key, value in tables.items() if not isinstance(value, dict)]:
        raise TargetError(
            f"{path} holds {', '.join(map(repr, bare))} outside of a table\n"
            "  fix: begin with the name of the hardware in brackets, such as [h100]"
        )
    return tables


def overlay(built_in: Mapping[str, Table], changes: Mapping[str, Table], path: Path) -> dict[str, Table]:
    """All tables: those built in, single numbers of them changed, and new ones added.

    A table with `like = "h100"` starts from that one, any other from the built-in table of its name, if there is one.

    Args:
        built_in: the tables to start from.
        changes: the tables of the user's file.
        path: that file, for messages.

    Raises:
        TargetError: a table is not complete or says what cannot be; the message lists every problem.
    """
    problems: list[str] = []
    tables = dict(built_in)
    for key in changes:
        found = _whole(key, built_in, changes, problems)
        if found is not None:
            tables[key] = found
            problems += table_problems(key, found)
    if problems:
        count = f"{counted(len(problems), 'problem')}"
        raise TargetError("\n".join([f"{path} has {count}", *(f"  {problem}" for problem in problems)]))
    return tables


def _whole(key: str, built_in: Mapping[str, Table], changes: Mapping[str, Table], problems: list[str]) -> Table | None:
    """A table of the user's with all that it inherits, or None where what it starts from is not there."""
    layers, at, seen = [changes[key]], key, [key]
    while (like := layers[-1].get("like")) is not None:
        at = like
        known = [*built_in, *(other for other in changes if other not in built_in)]
        if not isinstance(like, str) or at not in known:
            problems.append(f"[{seen[-1]}] like = {like!r}: there is no such table, {did_you_mean(str(like), known)}")
            return None
        if at in seen and at not in built_in:
            problems.append(f"[{key}] like goes in a circle: {' -> '.join([*seen, at])}")
            return None
        # Its own built-in table is what a changed table means by its own name.
        layers.append(changes[at] if at in changes and at not in seen else built_in[at])
        seen.append(at)
    if at in built_in and layers[-1] is not built_in[at]:
        layers.append(built_in[at])
    whole: Table = {}
    for layer in reversed(layers):
        whole = _merged(whole, layer)
    return whole


def _merged(below: Table, above: Table) -> Table:
    """The upper table over the lower one; of a table in both, the same again. What the upper one says stands first."""
    merged = {}
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(name), dict)
        merged[name] = _merged(below[name], value) if both else value
    merged.pop("like", None)
    return merged | {name: value for name, value in below.items() if name not in above}
