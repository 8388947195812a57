"""What is wrong with the TOML file of a Brain, and on which line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlay.brain.connections import Connection, split_end
from outlay.brain.files.settings import Unread
from outlay.brain.files.templates import Merged
from outlay.brain.files.units import UnitError, parse_connection
from outlay.brain.module import Module
from outlay.core.error_types import Problem
from outlay.core.toml import Path, TomlLines
from outlay.graph.step_graph import INPUTS


@dataclass
class Findings:
    """Problems of one file, each with its line.

    Attributes:
        lines: of the file.
        problems: what was found so far.
    """

    lines: TomlLines
    problems: list[Problem] = field(default_factory=list)

    def at(self, path: Path, kind: str, what: str, fix: str) -> None:
        """Add a problem of a key."""
        self.add(Problem(kind, f"{self.lines.of(path)} {'.'.join(path)}", what, fix))

    def at_text(self, key: str, text: str, kind: str, what: str, fix: str) -> None:
        """Add a problem of a text in the list under a key."""
        self.add(Problem(kind, self.lines.of_text(key, text.__eq__), what, fix))

    def add(self, problem: Problem) -> None:
        """Add a problem once: a mistake in a template is one, however many modules use it."""
        if problem not in self.problems:
            self.problems.append(problem)

    def tables(self, data: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
        """Return the tables `[KEY.NAME]` by name; add a problem for whatever there is no table."""
        tables = self.table(data, key)
        for name, table in tables.items():
            if not isinstance(table, Mapping) and name != "connections":
                self.at((key, name), "wrong type", f"{name} = {table!r} is no table", f"a table, [{key}.{name}]")
        return {name: table for name, table in tables.items() if isinstance(table, Mapping)}

    def table(self, data: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Return the table `[KEY]`, empty if there is none; report and remove connections that slipped into it."""
        table = data.get(key, {})
        if not isinstance(table, Mapping):
            self.at((key,), "wrong type", f"{key} = {table!r} is no table", f"a table, [{key}]")
            return {}
        if isinstance(table.get("connections"), list):
            fix = "move it above the first [table]: a key belongs to the table above it"
            self.at((key, "connections"), "misplaced", f"connections belongs to [{key}] here", fix)
        return {name: value for name, value in table.items() if name != "connections"}


def locate(
    problems: Sequence[Problem],
    lines: TomlLines,
    connections: Sequence[Connection],
    merged: Mapping[str, Merged],
    modules: Mapping[str, Module],
) -> Iterator[Problem]:
    """Yield the problems of a Brain with their lines in its file, without those of modules that could not be read."""
    for problem in problems:
        if problem.kind == "setting" and isinstance(modules.get(problem.where), Unread):
            continue
        same = [connection for connection in connections if str(connection) == problem.where]
        if same:
            line = lines.of_text("connections", lambda text, meant=same[0]: _says(text, meant))
        else:
            line = lines.of(_path_of(problem, merged))
        yield dataclasses.replace(problem, where=f"{line} {problem.where}")


def _says(text: str, connection: Connection) -> bool:
    try:
        return parse_connection(text) == connection
    except UnitError:
        return False


def _path_of(problem: Problem, merged: Mapping[str, Merged]) -> Path:
    name, _ = split_end(problem.where.strip("'"))
    if problem.kind == "output":
        return ("outputs", problem.where)
    if problem.kind == "input shape":
        return (INPUTS, problem.where.removeprefix(f"{INPUTS}:"), "shape")
    if name in merged:
        # "soma.tau is -3 ms" is about modules.NAME.soma.tau, or about that of its template.
        setting = tuple(problem.what.partition(" ")[0].split("."))
        return merged[name].written.get(setting, ("modules", name))
    return (problem.where,)
