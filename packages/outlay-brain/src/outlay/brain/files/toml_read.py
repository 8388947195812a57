"""Read Brains as people write them, in TOML; what is wrong in a file is told with its line."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection, split_end
from outlay.brain.files.settings import FORM, UnitError, Unread, number_in, parse_connection, read_table
from outlay.brain.files.templates import TEMPLATES, Merged, Templates
from outlay.brain.module import BrainError, Module, split_message
from outlay.brain.registry import MODULE
from outlay.errors import Problem
from outlay.kit import INPUTS, KeyPath, TomlLines, counted, did_you_mean, parse_toml, real_path

KEYS = ("dt", "dtype", "imports", "connections", "inputs", "outputs", TEMPLATES, "modules")
"""What a file may say, in the order in which it is written."""


def read_toml(text: str, *, name: str, folder: File, trust: bool = False) -> Brain:
    """Return the Brain that a TOML text describes.

    Args:
        text: the text.
        name: the file that it is from, for messages.
        folder: where the Python files lie that it imports.
        trust: run them.

    Raises:
        BrainError: something in it is wrong; every offender is listed with its line.
    """
    fix = "correct the syntax there: text such as 20 ms stands in quotes, and each key once in its table"
    data, findings = parse_toml(text, name, BrainError, fix), Findings(TomlLines(name, text))
    for key in data:
        if key not in KEYS:
            findings.at((key,), "unknown key", f"{key!r} is not part of a Brain", did_you_mean(key, KEYS))
    run, files = (
        functools.partial(import_file, folder, trust=trust),
        'the names of files in a list, imports = ["my_modules.py"]',
    )
    _read_texts(data, "imports", "import", run, files, findings)
    lines = f"connections = [{FORM}]"
    connections = _read_texts(data, "connections", "connection", parse_connection, lines, findings)
    modules, merged = _modules(data, connections, folder, findings)
    settings = {**_times(data, findings), "inputs": _inputs(data, findings), "outputs": _outputs(data, findings)}
    try:
        brain = Brain(modules, connections, **settings)
    except BrainError as error:
        for problem in locate(error.problems, findings.lines, connections, merged, modules):
            findings.add(problem)
    if findings.problems:
        count = len(findings.problems)
        raise BrainError(f"{name} describes no Brain that can be built: {counted(count, 'problem')}", findings.problems)
    return brain


def _read_texts(
    data: Mapping[str, Any], key: str, kind: str, read: Callable[[str], Any], fix: str, findings: Findings
) -> list[Any]:
    """Read each text in the list under a key; add a problem for every one that cannot be read."""
    texts, results = data.get(key, []), []
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        findings.at((key,), "wrong type", f"{key} is not a list of texts", fix)
        return []
    for text in texts:
        try:
            results.append(read(text))
        except (BrainError, UnitError) as error:
            findings.at_text(key, text, kind, *split_message(error))
    return results


def import_file(folder: File, name: str, *, trust: bool) -> None:
    """Run a Python file, so that the classes that it registers have their names; once in a process.

    Args:
        folder: the folder of the Brain's file, which the Python file must lie in.
        name: its path from there.
        trust: whether the user trusts what the Brain's file names.

    Raises:
        BrainError: it is not trusted, lies elsewhere, is not there, or fails.
    """
    # Resolved, since a link or ".." must not lead to Python outside the folder.
    try:
        path = real_path(folder / name)
    except (OSError, ValueError) as error:
        raise BrainError(
            f"{name} leads to no file: {error}\na path from the folder of this file to a Python file"
        ) from error
    if not path.is_relative_to(real_path(folder)):
        what = f"{name} lies outside the folder of this file, where nothing is imported from"
        raise BrainError(f"{what}\nkeep the Python file beside the file of the Brain")
    # By the file of an earlier Brain, or by the program of the user: its classes are registered.
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
        raise BrainError(f"{path.name} is not a Python file\na path to a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    # As `import` does before it runs a file: dataclasses look for their module here.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise BrainError(f"{path.name} fails: {type(error).__name__}: {error}\ncorrect it; it runs as it is") from error


def _times(data: Mapping[str, Any], findings: Findings) -> dict[str, Any]:
    times = {key: data[key] for key in ("dt", "dtype") if key in data}
    if isinstance(times.get("dt"), str):
        try:
            times["dt"] = number_in(times["dt"], "ms")
        except UnitError as error:
            findings.at(("dt",), "wrong unit", *split_message(error))
            del times["dt"]
    return times


def _modules(
    data: Mapping[str, Any], connections: Sequence[Connection], folder: File, findings: Findings
) -> tuple[dict[str, Module], dict[str, Merged]]:
    """Return the modules, with a stand-in for each that has mistakes, and their settings merged with templates."""
    templates = Templates(findings.tables(data, TEMPLATES))
    modules: dict[str, Module] = {}
    merged: dict[str, Merged] = {}
    for name, table in findings.tables(data, "modules").items():
        merged[name] = _merged(templates, name, table, findings)
        module = _module(name, merged[name], folder, findings)
        targets = [split_end(connection.target) for connection in connections]
        modules[name] = module or Unread(tuple(port for part, port in targets if part == name))
    for name in templates.tables.keys() - templates.used:
        fix = f'use = "{name}" in a module, or remove it'
        findings.at((TEMPLATES, name), "unused template", f"no module uses the template {name!r}", fix)
    return modules, merged


def _merged(templates: Templates, name: str, table: Mapping[str, Any], findings: Findings) -> Merged:
    wrong: list[tuple[KeyPath, str, str]] = []
    merged = templates.merge(table, ("modules", name), wrong)
    for path, what, fix in wrong:
        findings.at(path, "template", what, fix)
    return merged


def _module(name: str, merged: Merged, folder: File, findings: Findings) -> Module | None:
    def report(path: KeyPath, kind: str, what: str, fix: str) -> None:
        findings.at(merged.written.get(path, ("modules", name, *path)), kind, what, fix)

    return read_table(_from_folder(merged.table, folder), MODULE, (), report)


def _from_folder(table: Any, folder: File) -> Any:
    """Resolve the kernel files of a table relative to a folder."""
    if not isinstance(table, Mapping):
        return table
    if table.get("type") == "npy" and isinstance(table.get("path"), str):
        return {**table, "path": str(folder / table["path"])}
    return {key: _from_folder(value, folder) for key, value in table.items()}


def _inputs(data: Mapping[str, Any], findings: Findings) -> dict[str, Any]:
    inputs = {}
    for name, table in findings.tables(data, "inputs").items():
        path, shape = ("inputs", name), table.get("shape")
        for key in table.keys() - {"shape"}:
            findings.at((*path, key), "unknown key", f"an input has no {key!r}", "shape, and nothing else")
        if "shape" not in table:
            findings.at(path, "missing shape", f"the input {name!r} has no shape", "shape = [4]")
        # (1,) stands in for a shape that is missing, which is reported already.
        inputs[name] = tuple(shape) if isinstance(shape, list) else (1,) if shape is None else shape
    return inputs


def _outputs(data: Mapping[str, Any], findings: Findings) -> dict[str, str]:
    outputs = findings.table(data, "outputs")
    for name, where in outputs.items():
        if not isinstance(where, str):
            findings.at(("outputs", name), "wrong type", f"{name} = {where!r} is not a port", f'{name} = "MODULE:PORT"')
    return {name: where for name, where in outputs.items() if isinstance(where, str)}


@dataclass
class Findings:
    """Problems of one file, each with its line.

    Attributes:
        lines: the lines of the file.
        problems: what was found so far.
    """

    lines: TomlLines
    problems: list[Problem] = field(default_factory=list)

    def at(self, path: KeyPath, kind: str, what: str, fix: str) -> None:
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
                self.at((key, name), "wrong type", f"{name} = {table!r} is not a table", f"a table, [{key}.{name}]")
        return {name: table for name, table in tables.items() if isinstance(table, Mapping)}

    def table(self, data: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Return the table `[KEY]`, empty if there is none; report and remove connections that slipped into it."""
        table = data.get(key, {})
        if not isinstance(table, Mapping):
            self.at((key,), "wrong type", f"{key} = {table!r} is not a table", f"a table, [{key}]")
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
    """Yield the problems of a Brain with their lines in its file, except of modules that could not be read."""
    for problem in problems:
        # Its mistakes are reported already, each where it stands.
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


def _path_of(problem: Problem, merged: Mapping[str, Merged]) -> KeyPath:
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
