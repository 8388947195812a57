"""Write Brains as TOML, for people to read and change; `read_toml` reads back an equal Brain."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Iterator
from pathlib import Path as File
from typing import Any

from outlay.brain.brain import Brain
from outlay.brain.files.settings import TYPE, connection_text, file_key
from outlay.brain.files.templates import TEMPLATES, Table, own_settings, shared_settings
from outlay.brain.initializers import GivenKernel, KernelFile
from outlay.brain.module import BrainError, each_setting, split_message
from outlay.brain.registry import MODULE, kind_of, library, name_of
from outlay.errors import Problem
from outlay.kit import counted, toml_line, toml_value


@dataclasses.dataclass(frozen=True)
class _Number:
    """A value of a table with its unit, which is written as a comment."""

    value: Any
    unit: str


def write_toml(brain: Brain, *, folder: File) -> str:
    """Return a Brain as TOML.

    Args:
        brain: the Brain.
        folder: where the file is to lie, for the paths of Python files that it imports.

    Raises:
        BrainError: modules or components that have no name in files; all are listed.
    """
    tables = _tables(brain, folder)
    shared = shared_settings(tables)
    own = {name: own_settings(table, shared) for name, table in tables.items()}
    return "\n".join(
        [
            *_head(brain, folder),
            *(line for name, shape in brain.inputs.items() for line in ("", f"[inputs.{name}]", _line("shape", shape))),
            *(["", "[outputs]"] if brain.outputs else []),
            *(_line(name, where) for name, where in brain.outputs.items()),
            *(line for name, table in shared.items() for line in _table_lines((TEMPLATES, name), table)),
            *(line for name, table in own.items() for line in _table_lines(("modules", name), table)),
            "",
        ]
    )


def _head(brain: Brain, folder: File) -> Iterator[str]:
    # repr is the shortest text that reads back as the same number.
    yield f"dt = {brain.dt!r}  # ms, the time of a step"
    yield _line("dtype", brain.dtype)
    files = dict.fromkeys(_files(brain, folder))
    if files:
        yield _line("imports", list(files))
    yield ""
    yield "# What reads what, in the order in which several sources of a port are concatenated."
    yield "connections = ["
    yield from (f"  {toml_value(connection_text(connection))}," for connection in brain.connections)
    yield "]"


def _tables(brain: Brain, folder: File) -> dict[str, Table]:
    tables, problems = {}, []
    for name, module in brain.modules.items():
        try:
            tables[name] = _table(module, MODULE, folder)
        except BrainError as error:
            problems.append(Problem("unwritable", name, *split_message(error)))
    if problems:
        raise BrainError(f"this Brain cannot be written to a file: {counted(len(problems), 'problem')}", problems)
    return tables


def _table(settings: Any, kind: str, folder: File) -> Table:
    if isinstance(settings, KernelFile):
        # Relative to the file, so that both can be moved together.
        return {TYPE: name_of(KernelFile, kind=kind), "path": os.path.relpath(settings.path, folder)}
    table: Table = {TYPE: name_of(type(settings), kind=kind)}
    for field in dataclasses.fields(settings):
        value, unit = getattr(settings, field.name), field.metadata.get("unit", "")
        if isinstance(value, GivenKernel):
            raise BrainError(
                f"its {field.name} is an array, which a file does not hold\n"
                "  fix: numpy.save it, and KernelFile(path) in its place; outlay brain convert does so for a .nir"
            )
        inner = kind_of(type(value))
        if inner:
            table[file_key(field.name)] = _table(value, inner, folder)
        elif value is not None:
            table[file_key(field.name)] = _Number(value, unit) if unit else value
        # TOML has no null: a key that is not there takes its default.
        elif field.default is not None:
            raise BrainError(
                f"{field.name} is None, which a file says by leaving it out, and then it is {field.default!r}\n"
                f"  fix: another value for {field.name}"
            )
    return table


def _table_lines(path: tuple[str, ...], table: Table) -> Iterator[str]:
    """Yield a table and then the tables of its components; tables further inside are written on one line."""
    yield ""
    yield f"[{'.'.join(path)}]"
    inner = {key: value for key, value in table.items() if isinstance(value, dict) and len(path) == 2}
    yield from (_line(key, value) for key, value in table.items() if key not in inner)
    for key, value in inner.items():
        yield from _table_lines((*path, key), value)


def _line(key: str, value: Any) -> str:
    return toml_line(key, _without_units(value)) + (f"  # {value.unit}" if isinstance(value, _Number) else "")


def _without_units(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_units(item) for key, item in value.items()}
    return value.value if isinstance(value, _Number) else value


def _files(brain: Brain, folder: File) -> Iterator[str]:
    """Yield the Python files of modules and components that are not Outlay's."""
    brought = {file.__name__ for file in library()}
    for module in brain.modules.values():
        components = [type(value) for _, _, value in each_setting(module) if kind_of(type(value))]
        for cls in (type(module), *components):
            if cls.__module__ not in brought:
                yield os.path.relpath(inspect.getfile(cls), folder)
