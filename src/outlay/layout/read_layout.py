"""Read layout files: ordered `[[rule]]` tables in TOML, each a rule or a strategy."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, MeshError, Problem
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.core.toml import TomlLines, parse_toml, read_toml_text
from outlay.devices.mesh_spec import EXAMPLE, MeshSpec
from outlay.layout.contexts import EXCHANGES, context
from outlay.layout.fp8 import FLOAT8S, SCALINGS, fp8
from outlay.layout.layout import Layout
from outlay.layout.pipelines import CUTS, pipeline
from outlay.layout.placement import STORAGE_NAMES, Placement, Storage, follow, on, replicate
from outlay.layout.rule import OTHERWISE, Otherwise, Rule
from outlay.layout.strategies import Axes, by_module, by_rows, data_parallel, fsdp, tensor_parallel, zero1, zero2

_FREE = "-"
_RULE = re.compile(r"^\s*\[\[", re.MULTILINE)


@dataclass(frozen=True)
class LayoutFile:
    """The content of a layout file.

    Attributes:
        layout: its rules.
        mesh: the mesh that goes with them, as text; None if the file names none.
    """

    layout: Layout
    mesh: str | None


def read_layout(path: str | os.PathLike[str]) -> Layout:
    r"""Read a layout from a TOML file: the rules of its `[[rule]]` tables, in order.

    A rule has `match` (the pattern) and one placement: `spec` (one entry per dim: an axis, a list of axes, or "-" for a
    free dim), `replicate = true`, `on = [2]`, `follow = "params"`, `pipeline = { axis = "stage", microbatches = 8 }`,
    `context = { axis = "context", exchange = "ring" }` or `fp8 = true`, `fp8 = { scaling = "blockwise" }`;
    `otherwise` and `optional` as in `outlay.Rule`.
    Instead, or beside a spec, it may have one of `keep = true`, `recompute = true` and `on_host = true`.
    Or it names a strategy, whose arguments are further keys. Above the rules, `mesh` may name the mesh that the command
    line uses with the file::

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
        LayoutError: there is no such file, it is not TOML, or its rules are wrong; every offender with its line.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "layout.toml")
        >>> _ = file.write_text('[[rule]]\nmatch = "params.**.kernel"\nspec = ["-", ["data", "model"]]\n')
        >>> print(outlay.layout.read_layout(file))
        1. params.**.kernel  P(None, ('data', 'model'))
    """
    return read_layout_file(path).layout


def read_layout_file(path: str | os.PathLike[str]) -> LayoutFile:
    """Read everything in a layout file: the layout, as `read_layout` does, and the mesh.

    Args:
        path: the file.

    Raises:
        LayoutError: there is no such file, it is not TOML, or its rules or its mesh are wrong; every offender.
    """
    text = read_toml_text(path, "the layout file", LayoutError)
    _check_size(os.fspath(path), text)
    lines = TomlLines(os.fspath(path), text)
    tables, mesh = _contents(lines)
    rules: list[Rule] = []
    problems: list[Problem] = []
    for number, table in enumerate(tables):
        entry = _Entry(number, table, lines)
        try:
            rules += _rules(entry)
        except LayoutError as error:
            problems += error.problems
    if problems:
        raise _unusable(lines, problems)
    return LayoutFile(Layout(rules), mesh)


MOST_RULES = 10_000
_MOST_CHARACTERS = 200 * MOST_RULES


def _check_size(name: str, text: str) -> None:
    """Raise if a file is so large that it would take a minute to parse, and more to apply to every leaf."""
    num_rules = len(_RULE.findall(text))
    if num_rules > MOST_RULES or len(text) > _MOST_CHARACTERS:
        what = f"it has {counted(num_rules, 'rule')} in {len(text):,} characters; at most {MOST_RULES:,} are read"
        fix = "write patterns that match many leaves: * for one part of a path, ** for any number"
        raise LayoutError(f"{name} is not a usable layout: 1 problem", [Problem("too many rules", name, what, fix)])


def _contents(lines: TomlLines) -> tuple[list[dict[str, Any]], str | None]:
    """Return the `[[rule]]` tables and the mesh of a file; raise if it holds anything else."""
    data = parse_toml(lines.text, lines.name, LayoutError, "correct the syntax there; see https://toml.io")
    problems = [
        Problem("unknown key", lines.of((key,)), f"{key!r} is not part of a layout", _top_level_fix(key))
        for key in data
        if key not in ("rule", "mesh")
    ]
    problems += _mesh_problems(data["mesh"], lines.of(("mesh",))) if "mesh" in data else []
    tables = data.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        what = "'rule' is not a list of tables"
        problems.append(Problem("wrong type", lines.of(("rule",)), what, "write [[rule]], in two brackets"))
    elif not tables and not problems:
        fix = 'write one: [[rule]], then match = "params.**.kernel" and spec = ["-", "model"]'
        problems.append(Problem("no rules", lines.name, "the file holds no [[rule]]", fix))
    if problems:
        raise _unusable(lines, problems)
    return tables, data.get("mesh")


def _unusable(lines: TomlLines, problems: Sequence[Problem]) -> LayoutError:
    return LayoutError(f"{lines.name} is not a usable layout: {counted(len(problems), 'problem')}", problems)


def _mesh_problems(mesh: Any, where: str) -> list[Problem]:
    fix = f'write mesh = "{EXAMPLE}"'
    if not isinstance(mesh, str):
        return [Problem("wrong type", where, f"mesh = {mesh!r} is not text", fix)]
    try:
        MeshSpec.parse(mesh)
    except MeshError as error:
        return [Problem("not a mesh", where, str(error), fix)]
    return []


def _top_level_fix(key: str) -> str:
    return f"{did_you_mean(key, ['rule', 'mesh'])}; rules are [[rule]] tables, in two brackets"


@dataclass(frozen=True)
class _Entry:
    """One `[[rule]]` table.

    Attributes:
        number: its position in the file, from 0.
        table: its keys and values.
        lines: the lines of the file.
    """

    number: int
    table: dict[str, Any]
    lines: TomlLines

    def line(self, key: str | None = None) -> str:
        """Return `file:line` of a key, or of the header if the key has no line."""
        path = ("rule", str(self.number))
        if path not in self.lines.lines:  # rules written inline, `rule = [{...}]`, have no header
            return f"{self.lines.name} (rule {self.number + 1})"
        return self.lines.of(path if key is None else (*path, key))

    @property
    def source(self) -> str:
        """How messages about a plan name the rules of this table."""
        strategy = f" ({self.table['strategy']})" if "strategy" in self.table else ""
        return f"{self.line()}, [[rule]] {self.number + 1}{strategy}"


def _rules(entry: _Entry) -> list[Rule]:
    """Return the rules of one table.

    Raises:
        LayoutError: with every problem of the table, each with its line.
    """
    is_strategy = "strategy" in entry.table
    problems = _strategy_problems(entry) if is_strategy else _rule_problems(entry)
    if problems:
        raise LayoutError("this table cannot be used:", problems)
    arguments = {key: value for key, value in entry.table.items() if key != "strategy"}
    if is_strategy and isinstance(axes := arguments.get("axis"), list):
        arguments["axis"] = tuple(axes)
    try:
        rules = strategies()[entry.table["strategy"]](**arguments) if is_strategy else [_rule(arguments)]
    except LayoutError as error:
        # A strategy names the argument that it refuses, a rule its own pattern.
        locations = [
            entry.line(p.where) if p.where in arguments else f"{entry.line()} {p.where}" for p in error.problems
        ]
        located = zip(locations, error.problems, strict=True)
        problems = [dataclasses.replace(problem, where=location) for location, problem in located]
        raise LayoutError("this table cannot be used:", problems) from error
    return [dataclasses.replace(rule, source=entry.source) for rule in rules]


Form = tuple[Callable[[Any], bool], str]
"""What a key takes: a check of values, and a description."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_axis(value: Any) -> bool:
    return _is_text(value) and value != ""  # JAX reads the empty name as a free dim, which is written "-" here


def _is_spec(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return all(_is_axis(entry) or (isinstance(entry, list) and all(map(_is_axis, entry))) for entry in value)


def _is_positions(value: Any) -> bool:
    return isinstance(value, list) and all(type(position) is int for position in value)


def _is_pipeline(value: Any) -> bool:
    numbers = {"microbatches", "repeats"}
    if not isinstance(value, dict) or not {"microbatches"} <= {*value} <= {"axis", "cut", *numbers}:
        return False
    cut = value.get("cut", CUTS[0])
    if cut not in CUTS and not (isinstance(cut, list) and all(type(number) is int for number in cut)):
        return False
    return _is_axis(value.get("axis", "stage")) and all(type(value[key]) is int for key in numbers & {*value})


def _is_context(value: Any) -> bool:
    if not isinstance(value, dict) or not {*value} <= {"axis", "exchange"}:
        return False
    return _is_axis(value.get("axis", "context")) and value.get("exchange", EXCHANGES[0]) in EXCHANGES


def _is_fp8(value: Any) -> bool:
    if not isinstance(value, dict):
        return value is True
    formats = {"forward", "backward"}
    is_scaling = value.get("scaling", SCALINGS[0]) in SCALINGS
    return {*value} <= {"scaling", *formats} and is_scaling and all(value[key] in FLOAT8S for key in formats & {*value})


def _spec(entries: list[Any]) -> P:  # TOML has no null, hence the dash
    return P(*(None if e == _FREE else e if isinstance(e, str) else tuple(e) for e in entries))


def _pipeline(given: dict[str, Any]) -> Placement:
    numbers: dict[str, Any] = {"cut": tuple(given["cut"])} if isinstance(given.get("cut"), list) else {}
    return pipeline(**{**given, **numbers})


_PLACEMENTS: dict[str, Callable[[Any], Placement]] = {
    "spec": _spec,
    "replicate": lambda _: replicate(),
    "on": on,
    "follow": follow,
    "pipeline": _pipeline,
    "context": lambda given: context(**given),
    "fp8": lambda given: fp8(**({} if given is True else given)),
}
_STORAGES = {name: Storage(stored) for stored, name in STORAGE_NAMES.items() if stored}
_TRUE: Form = (lambda value: value is True, "true")
_RULE_FORMS: dict[str, Form] = {
    "match": (_is_text, 'a pattern such as "params.**.kernel"'),
    "spec": (_is_spec, 'a list with one entry a dim, such as ["-", "model"] or [["data", "model"]]'),
    "replicate": _TRUE,
    "on": (_is_positions, "a list of positions in the mesh, such as [2]"),
    "follow": (_is_text, 'the path of what to follow, such as "params" or "params.critic"'),
    "pipeline": (_is_pipeline, 'a table such as { axis = "stage", microbatches = 8, repeats = 2 }'),
    "context": (_is_context, 'a table such as { axis = "context", exchange = "ring" }'),
    "fp8": (_is_fp8, 'true, or a table such as { scaling = "blockwise", forward = "e4m3", backward = "e5m2" }'),
    **dict.fromkeys(_STORAGES, _TRUE),
    "otherwise": (_is_text, 'one of "error", "replicate", "another_dim"'),
    "optional": (lambda value: isinstance(value, bool), "true or false"),
    "strategy": (_is_text, "the name of a strategy"),
}


def strategies() -> dict[str, Callable[..., Layout]]:
    """Return the strategies that a file can name."""
    # A file without strategies does not import them.
    from outlay.layout.expert_rules import expert_parallel
    from outlay.layout.hybrid import hsdp

    named = (data_parallel, fsdp, hsdp, zero1, zero2, tensor_parallel, expert_parallel, by_module, by_rows)
    return {strategy.__name__: strategy for strategy in named}


ARGUMENT_FORMS: dict[Any, Form] = {
    str: (_is_text, "a string"),
    Axes: (
        lambda value: _is_text(value) or (isinstance(value, list) and bool(value) and all(map(_is_axis, value))),
        'an axis, or a list of several such as ["data", "context"]',
    ),
    int: (lambda value: type(value) is int, "a whole number"),
    Otherwise: (lambda value: value in OTHERWISE, "one of " + ", ".join(map(repr, OTHERWISE))),
    Sequence[str]: (
        lambda value: isinstance(value, list) and all(map(_is_text, value)),
        'a list of patterns, such as ["**.up.*"]',
    ),
    Mapping[str, int | Sequence[int]]: (
        lambda value: isinstance(value, dict) and all(type(v) is int or _is_positions(v) for v in value.values()),
        "a table of module paths and positions, such as { 'params.a' = 2 }",
    ),
}
"""What a strategy's parameter takes from a file, by the parameter's type."""


def _rule(table: Mapping[str, Any]) -> Rule:
    """Build the rule of a table in which `_rule_problems` found nothing wrong."""
    placed = [_PLACEMENTS[key](table[key]) for key in _PLACEMENTS if key in table]
    stored = [storage for key, storage in _STORAGES.items() if key in table]
    placement = stored[0] + placed[0] if stored and placed else (*stored, *placed)[0]
    return Rule(table["match"], placement, **{key: table[key] for key in ("otherwise", "optional") if key in table})


def _rule_problems(entry: _Entry) -> list[Problem]:
    """Return the problems of a rule: it needs a pattern and exactly one placement."""
    problems = _key_problems(entry, _RULE_FORMS, "a rule")
    placed = [key for key in _PLACEMENTS if key in entry.table]
    stored = [key for key in _STORAGES if key in entry.table]
    if "match" not in entry.table:
        fix = 'add match = "params.**.kernel", or name a strategy'
        problems.append(Problem("missing match", entry.line(), "the rule does not say which leaves it is for", fix))
    # A storage may stand alone or beside a spec.
    at_odds = stored + placed if stored and placed not in ([], ["spec"]) else max(placed, stored, key=len)
    if len(at_odds) > 1:
        what = f"the rule has {len(at_odds)} placements: {', '.join(at_odds)}"
        fix = "keep one, or write a rule for each"
        problems.append(Problem("two placements", entry.line(at_odds[1]), what, fix))
    elif not placed and not stored:
        fix = 'add one of spec = ["-", "model"], replicate = true, on = [2], follow = "params"'
        problems.append(Problem("no placement", entry.line(), "the rule does not say where the leaves live", fix))
    return problems


def _strategy_problems(entry: _Entry) -> list[Problem]:
    """Return the problems of a table that names a strategy: its name, and arguments that the function does not take."""
    name = entry.table["strategy"]
    if not isinstance(name, str) or name not in strategies():
        is_rule = name == "replicate"
        fix = 'write match = "**" and replicate = true' if is_rule else did_you_mean(str(name), strategies())
        return [Problem("unknown strategy", entry.line("strategy"), f"there is no strategy {name!r}", fix)]
    strategy = strategies()[name]
    types = typing.get_type_hints(strategy)
    parameters = inspect.signature(strategy).parameters
    forms = {key: ARGUMENT_FORMS[types[key]] for key in parameters}
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in entry.table]
    return _key_problems(entry, forms, f"strategy {name!r}", name) + [
        Problem("missing key", entry.line(), f"strategy {name!r} needs {key!r}", f"add {key}: {forms[key][1]}")
        for key in missing
    ]


def _key_problems(entry: _Entry, forms: Mapping[str, Form], owner: str, name: str = "") -> list[Problem]:
    """Return the problems of keys that a table does not take, and of values of the wrong type."""
    problems = []
    for key, value in entry.table.items():
        if key == "strategy":
            continue
        if key not in forms:
            what, fix = f"{owner} does not take {key!r}", did_you_mean(key, forms)
            problems.append(Problem("unknown key", entry.line(key), what, fix))
        elif not forms[key][0](value):
            what = f"{key} = {value!r} is not valid for {name or key}"
            problems.append(Problem("wrong type", entry.line(key), what, f"{key} takes {forms[key][1]}"))
    return problems
