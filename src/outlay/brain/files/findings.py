"""What is wrong in a file, gathered while it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlay.brain.files.toml_lines import Path, TomlLines
from outlay.core.errors import Problem


@dataclass
class Findings:
    """Problems of one file, each with its line.

    Attributes:
        lines: of the file.
        problems: what was found so far.
    """

    lines: TomlLines
    problems: list[Problem] = field(default_factory=list)

    def at(self, path: Path, kind: str, what: str, cure: str) -> None:
        """Something is wrong with a key."""
        self.add(Problem(kind, f"{self.lines.of(path)} {'.'.join(path)}", what, cure))

    def at_text(self, key: str, text: str, kind: str, what: str, cure: str) -> None:
        """Something is wrong with a text in the list under a key."""
        self.add(Problem(kind, self.lines.of_text(key, text.__eq__), what, cure))

    def add(self, problem: Problem) -> None:
        """A problem; a mistake in a template is one, however many modules use it."""
        if problem not in self.problems:
            self.problems.append(problem)

    def tables(self, data: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
        """The tables `[KEY.NAME]` by name, without what is none."""
        tables = self.table(data, key)
        for name, table in tables.items():
            if not isinstance(table, Mapping) and name != "connections":
                self.at((key, name), "wrong type", f"{name} = {table!r} is no table", f"a table, [{key}.{name}]")
        return {name: table for name, table in tables.items() if isinstance(table, Mapping)}

    def table(self, data: Mapping[str, Any], key: str) -> dict[str, Any]:
        """The table `[KEY]`, empty where there is none; connections that slipped into it are told and taken out."""
        table = data.get(key, {})
        if not isinstance(table, Mapping):
            self.at((key,), "wrong type", f"{key} = {table!r} is no table", f"a table, [{key}]")
            return {}
        if isinstance(table.get("connections"), list):
            cure = "move it above the first [table]: a key belongs to the table above it"
            self.at((key, "connections"), "misplaced", f"connections belongs to [{key}] here", cure)
        return {name: value for name, value in table.items() if name != "connections"}
