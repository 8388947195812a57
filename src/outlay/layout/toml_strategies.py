"""Strategies in layout files: the name, and the function's arguments as keys, checked against its signature."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outlay.core.error_types import Problem
from outlay.core.suggest import did_you_mean
from outlay.layout.layout import Layout
from outlay.layout.rule import OTHERWISE, Otherwise
from outlay.layout.strategies import by_module, by_rows, data_parallel, fsdp, tensor_parallel, zero1, zero2
from outlay.layout.toml_lines import TomlLines

_ALL = (data_parallel, fsdp, zero1, zero2, tensor_parallel, by_module, by_rows)
STRATEGIES: dict[str, Callable[..., Layout]] = {strategy.__name__: strategy for strategy in _ALL}


def _is_position(value: Any) -> bool:
    return type(value) is int or (isinstance(value, list) and all(type(each) is int for each in value))


FORMS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    str: (lambda value: isinstance(value, str), "a string"),
    int: (lambda value: type(value) is int, "a whole number"),
    Otherwise: (lambda value: value in OTHERWISE, "one of " + ", ".join(map(repr, OTHERWISE))),
    Sequence[str]: (
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
        'a list of patterns, such as ["**.up.*"]',
    ),
    Mapping[str, int | Sequence[int]]: (
        lambda value: isinstance(value, dict) and all(map(_is_position, value.values())),
        "a table of module paths and positions, such as { 'params.a' = 2 }",
    ),
}
"""What the type of a strategy's parameter accepts from a file, and how to say it."""


def strategy_rules(table: dict[str, Any]) -> Layout:
    """The rules of a table that `strategy_problems` found nothing wrong with."""
    return STRATEGIES[table["strategy"]](**{key: value for key, value in table.items() if key != "strategy"})


def strategy_problems(number: int, table: dict[str, Any], lines: TomlLines) -> list[Problem]:
    """What is wrong with a table that names a strategy: the name, the keys, the types, what is missing."""
    name = table["strategy"]
    if not isinstance(name, str) or name not in STRATEGIES:
        where = lines.of_rule(number, "strategy")
        return [Problem("unknown strategy", where, f"there is no strategy {name!r}", _name_fix(name))]
    strategy = STRATEGIES[name]
    types = typing.get_type_hints(strategy)
    parameters = inspect.signature(strategy).parameters
    problems = []
    for key, value in table.items():
        if key == "strategy":
            continue
        where = lines.of_rule(number, key)
        if key not in parameters:
            fix = did_you_mean(key, parameters)
            problems.append(Problem("unknown key", where, f"strategy {name!r} takes no {key!r}", fix))
        elif not FORMS[types[key]][0](value):
            what = f"{key} = {value!r} is not what {name} takes"
            problems.append(Problem("wrong type", where, what, f"{key} takes {FORMS[types[key]][1]}"))
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in table]
    return problems + [
        Problem(
            "missing key",
            lines.of_rule(number),
            f"strategy {name!r} needs {key!r}",
            f"add {key}: {FORMS[types[key]][1]}",
        )
        for key in missing
    ]


def _name_fix(name: Any) -> str:
    if name == "replicate":
        return 'write match = "**" and replicate = true'
    return did_you_mean(str(name), STRATEGIES)
