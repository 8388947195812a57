"""What does not fit in a Brain, with the line of its file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from outlay.brain.connection import Connection, split_end
from outlay.brain.files.connection_text import parse_connection
from outlay.brain.files.templates import Merged
from outlay.brain.files.toml_lines import Path, TomlLines
from outlay.brain.files.units import UnitError
from outlay.brain.files.unread import Unread
from outlay.brain.module import Module
from outlay.core.errors import Problem
from outlay.core.step_graph import INPUTS


def locate(
    problems: Sequence[Problem],
    lines: TomlLines,
    connections: Sequence[Connection],
    merged: Mapping[str, Merged],
    modules: Mapping[str, Module],
) -> Iterator[Problem]:
    """The problems of a Brain where its file speaks of them, without those of modules that were not read."""
    for problem in problems:
        if problem.kind == "setting" and isinstance(modules.get(problem.where), Unread):
            continue
        said = [connection for connection in connections if str(connection) == problem.where]
        if said:
            line = lines.of_text("connections", lambda text, meant=said[0]: _says(text, meant))
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
