"""Layout files: ordered `[[rule]]` tables in TOML, read into a `Layout`."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, MeshError, Problem
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.devices.spec import EXAMPLE, MeshSpec
from outlay.layout.layout import Layout
from outlay.layout.placement import Placement, follow, on, replicate
from outlay.layout.rule import Rule
from outlay.layout.storage import Storage, keep, on_host, recompute
from outlay.layout.toml_lines import TomlLines
from outlay.layout.toml_strategies import strategy_problems, strategy_rules

_FREE = "-"
_LARGEST = 2**24  # characters of a layout's file; a device may never end


@dataclass(frozen=True)
class LayoutFile:
    """What a layout file holds.

    Attributes:
        layout: its rules.
        mesh: the mesh that goes with them, as text; None where the file names none.
    """

    layout: Layout
    mesh: str | None


def read_layout(path: str | os.PathLike[str]) -> Layout:
    r"""A layout from a TOML file: the rules of its `[[rule]]` tables, in their order.

    A rule has `match` (the pattern) and one placement: `spec` (one entry a dim: an axis, a list of axes, or "-" for a
    free dim), `replicate = true`, `on = [2]` or `follow = "params"`; `otherwise` and `optional` as in `outlay.Rule`.
    In its place, or beside a spec, stands one of `keep = true`, `recompute = true` and `on_host = true`.
    Or it names a strategy, whose arguments are further keys. Above the rules, `mesh` may name the mesh that the command
    line takes with the file::

        mesh = "data=4,model=2"

        [[rule]]
        match = "params.**.kernel"
        spec = ["-", "model"]

        [[rule]]
        strategy = "fsdp"
        axis = "data"

    Args:
        path: the file.

    Raises:
        LayoutError: there is no such file, it is no TOML, or its rules are wrong; every offender with its line.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "layout.toml")
        >>> _ = file.write_text('[[rule]]\nmatch = "params.**.kernel"\nspec = ["-", ["data", "model"]]\n')
        >>> print(outlay.read_layout(file))
        1. params.**.kernel  P(None, ('data', 'model'))
    """
    return read_layout_file(path).layout


def read_layout_file(path: str | os.PathLike[str]) -> LayoutFile:
    """All that a layout file holds: the layout, as by `read_layout`, and the mesh.

    Args:
        path: the file.

    Raises:
        LayoutError: there is no such file, it is no TOML, or its rules or its mesh are wrong; every offender.
    """
    lines = TomlLines(os.fspath(path), _read_text(path))
    tables, mesh = _contents(lines)
    rules: list[Rule] = []
    problems: list[Problem] = []
    for number, table in enumerate(tables):
        is_strategy = "strategy" in table
        read = _read_strategy if is_strategy else _read_rule
        place = f"{lines.of_rule(number)}, [[rule]] {number + 1}" + (f" ({table['strategy']})" if is_strategy else "")
        rules += [dataclasses.replace(rule, source=place) for rule in read(number, table, lines, problems)]
    if problems:
        raise LayoutError(f"{lines.name} is not a usable layout: {counted(len(problems), 'problem')}", problems)
    return LayoutFile(Layout(rules), mesh)


def _read_text(path: str | os.PathLike[str]) -> str:
    try:
        with Path(path).open(encoding="utf-8-sig") as file:  # some editors begin a file with a byte order mark
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise OSError(errno.EFBIG, f"it has more than {_LARGEST:,} characters")
        return text
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else f"not UTF-8 text: {error}"
        problem = Problem("unreadable file", os.fspath(path), str(what), "name a TOML file that you can read")
        raise LayoutError("the layout file cannot be read:", [problem]) from error


def _contents(lines: TomlLines) -> tuple[list[dict[str, Any]], str | None]:
    """The `[[rule]]` tables and the mesh of a file that holds nothing else."""
    try:
        data = tomllib.loads(lines.text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        where = f"{lines.name}:{at[1]}:{at[2]}" if at else f"{lines.name}, at its end"
        problem = Problem("not TOML", where, str(error), "correct the syntax there; see https://toml.io")
        raise LayoutError("the layout file cannot be parsed:", [problem]) from error
    except RecursionError as error:
        what = "lists or tables stand in one another, hundreds deep"
        problem = Problem("nested too deeply", lines.name, what, "a layout file needs three levels at most")
        raise LayoutError("the layout file cannot be parsed:", [problem]) from error
    problems = [
        Problem("unknown key", lines.of_top_level(key), f"{key!r} is not part of a layout", _rule_fix(key))
        for key in data
        if key not in ("rule", "mesh")
    ]
    problems += _mesh_problems(data["mesh"], lines) if "mesh" in data else []
    tables = data.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        what = "'rule' is not a list of tables"
        problems.append(Problem("wrong type", lines.of_top_level("rule"), what, "write [[rule]], in two brackets"))
    elif not tables and not problems:
        fix = 'write one: [[rule]], then match = "params.**.kernel" and spec = ["-", "model"]'
        problems.append(Problem("no rules", lines.name, "the file holds no [[rule]]", fix))
    if problems:
        raise LayoutError(f"{lines.name} is not a usable layout: {counted(len(problems), 'problem')}", problems)
    return tables, data.get("mesh")


def _mesh_problems(mesh: Any, lines: TomlLines) -> list[Problem]:
    where = lines.of_top_level("mesh")
    if not isinstance(mesh, str):
        return [Problem("wrong type", where, f"mesh = {mesh!r} is not what mesh takes", f'write mesh = "{EXAMPLE}"')]
    try:
        MeshSpec.parse(mesh)
    except MeshError as error:
        return [Problem("not a mesh", where, str(error), f'write mesh = "{EXAMPLE}"')]
    return []


def _rule_fix(key: str) -> str:
    return f"{did_you_mean(key, ['rule', 'mesh'])}; rules are [[rule]] tables, in two brackets"


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_axis(value: Any) -> bool:
    return _is_text(value) and value != ""  # JAX reads the empty name as a dim left free, which is written "-"


def _is_true(value: Any) -> bool:
    return value is True


def _is_spec(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return all(_is_axis(entry) or (isinstance(entry, list) and all(map(_is_axis, entry))) for entry in value)


def _is_positions(value: Any) -> bool:
    return isinstance(value, list) and all(type(position) is int for position in value)


def _spec(entries: list[Any]) -> P:
    return P(*(None if e == _FREE else e if isinstance(e, str) else tuple(e) for e in entries))


_PLACEMENTS: dict[str, Callable[[Any], Placement]] = {
    "spec": _spec,
    "replicate": lambda _: replicate(),
    "on": on,
    "follow": follow,
}
_STORAGES: dict[str, Callable[[], Storage]] = {"keep": keep, "recompute": recompute, "on_host": on_host}
_FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "match": (_is_text, 'a pattern such as "params.**.kernel"'),
    "spec": (_is_spec, 'a list with one entry a dim, such as ["-", "model"] or [["data", "model"]]'),
    "replicate": (_is_true, "true"),
    "on": (_is_positions, "a list of positions in the mesh, such as [2]"),
    "follow": (_is_text, 'the path of what to follow, such as "params" or "params.critic"'),
    **dict.fromkeys(_STORAGES, (_is_true, "true")),
    "otherwise": (_is_text, 'one of "error", "replicate", "another_dim"'),
    "optional": (lambda value: isinstance(value, bool), "true or false"),
}


def _read_rule(number: int, table: dict[str, Any], lines: TomlLines, problems: list[Problem]) -> list[Rule]:
    found = [*_key_problems(number, table, lines), *_placement_problems(number, table, lines)]
    problems += found
    if found:
        return []
    try:
        options = {name: table[name] for name in ("otherwise", "optional") if name in table}
        return [Rule(table["match"], _placement(table), **options)]
    except LayoutError as error:
        problems += [Problem(p.kind, f"{lines.of_rule(number)} {p.where}", p.what, p.fix) for p in error.problems]
        return []


def _placement(table: dict[str, Any]) -> Placement:
    """The placement of a table in which `_placement_problems` found nothing wrong."""
    placed = [_PLACEMENTS[key](table[key]) for key in _PLACEMENTS if key in table]
    stored = [storage() for key, storage in _STORAGES.items() if key in table]
    return stored[0] + placed[0] if stored and placed else (*stored, *placed)[0]


def _key_problems(number: int, table: dict[str, Any], lines: TomlLines) -> list[Problem]:
    """Keys that a rule does not have, and values of the wrong type."""
    problems = []
    for key, value in table.items():
        where = lines.of_rule(number, key)
        if key not in _FORMS:
            fix = did_you_mean(key, [*_FORMS, "strategy"])
            problems.append(Problem("unknown key", where, f"a rule has no key {key!r}", fix))
        elif not _FORMS[key][0](value):
            what = f"{key} = {value!r} is not what {key} takes"
            problems.append(Problem("wrong type", where, what, f"{key} takes {_FORMS[key][1]}"))
    return problems


def _placement_problems(number: int, table: dict[str, Any], lines: TomlLines) -> list[Problem]:
    """A rule needs its pattern and exactly one placement."""
    problems = []
    given = [key for key in _PLACEMENTS if key in table]
    stored = [key for key in _STORAGES if key in table]
    if "match" not in table:
        fix = 'add match = "params.**.kernel", or name a strategy'
        problems.append(Problem("missing match", lines.of_rule(number), "the rule says nothing of which leaves", fix))
    at_odds = stored + given if stored and given not in ([], ["spec"]) else max(given, stored, key=len)
    if len(at_odds) > 1:
        what = f"the rule has {len(at_odds)} placements: {', '.join(at_odds)}"
        fix = "keep one, or write one rule each"
        problems.append(Problem("two placements", lines.of_rule(number, at_odds[1]), what, fix))
    elif not given and not stored:
        fix = 'add one of spec = ["-", "model"], replicate = true, on = [2], follow = "params"'
        problems.append(Problem("no placement", lines.of_rule(number), "the rule says nothing of where", fix))
    return problems


def _read_strategy(number: int, table: dict[str, Any], lines: TomlLines, problems: list[Problem]) -> list[Rule]:
    found = strategy_problems(number, table, lines)
    problems += found
    if found:
        return []
    try:
        return list(strategy_rules(table))
    except LayoutError as error:
        where = lines.of_rule(number)
        problems += [Problem(p.kind, lines.of_rule(number, p.where) or where, p.what, p.fix) for p in error.problems]
        return []
