"""Write layouts as TOML that `read_layout` reads as an equal layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, Problem
from outlay.core.quantities import counted
from outlay.core.toml import toml_line
from outlay.layout.layout import Layout
from outlay.layout.pipelines import Pipeline
from outlay.layout.placement import STORAGE_NAMES, Follow, On, Replicate, Storage
from outlay.layout.policies import LargestDim, OneDim
from outlay.layout.rule import Rule
from outlay.layout.strategies import data_parallel


def write_layout(layout: Layout, *, mesh: str | None = None, comment: str = "") -> str:
    """Write a layout as the text of a TOML file; `read_layout` reads an equal one.

    Args:
        layout: the layout.
        mesh: the mesh that goes with it, as text.
        comment: lines for the top of the file.

    Raises:
        LayoutError: it holds policies of the user's own, which a file cannot express; all are listed.

    >>> print(write_layout(outlay.fsdp("data", min_size=16), mesh="data=8"))
    mesh = "data=8"
    <BLANKLINE>
    [[rule]]
    strategy = "fsdp"
    axis = "data"
    min_size = 16
    <BLANKLINE>
    """
    problems = unwritable(layout)
    if problems:
        raise LayoutError(f"{counted(len(problems), 'rule')} cannot be written to a file:", problems)
    head = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    tables = [_table(keys) for keys in _rules_as_keys(layout.rules)]
    return "\n".join([*([head] if head else []), *([toml_line("mesh", mesh), ""] if mesh else []), *tables])


def unwritable(layout: Layout) -> list[Problem]:
    """Return the rules that a file cannot express: policies that no strategy makes."""
    return [
        Problem(
            "policy",
            rule.pattern,
            f"{rule} is a Python function",
            "keep the layout in Python, or write its specs as rules",
        )
        for rule in layout
        if rule.is_policy and not _is_known(rule)
    ]


def _is_known(rule: Rule) -> bool:
    if isinstance(rule.placement, Pipeline):
        return True
    return not rule.optional and isinstance(rule.placement, LargestDim | OneDim)


def _rules_as_keys(rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Return the content of each `[[rule]]` table; the two rules of `data_parallel` become one."""
    keys, position = [], 0
    while position < len(rules):
        rule = rules[position]
        pair = rules[position : position + 2]
        if len(rule.axes) == 1 and tuple(pair) == data_parallel(rule.axes[0]).rules:
            keys.append({"strategy": "data_parallel", "axis": rule.axes[0]})
            position += 2
        else:
            keys.append(_keys(rule))
            position += 1
    return keys


def _keys(rule: Rule) -> dict[str, Any]:
    otherwise = {} if rule.otherwise == "error" else {"otherwise": rule.otherwise}
    placement = rule.placement
    if isinstance(placement, LargestDim):
        pattern = {} if rule.pattern == "**" else {"pattern": rule.pattern}
        keys = {"strategy": "fsdp", "axis": placement.axis, "min_size": placement.min_size, **pattern}
    elif isinstance(placement, OneDim):
        keys = _one_dim(rule.pattern, placement)
    else:
        optional = {"optional": True} if rule.optional else {}
        return {"match": rule.pattern, **_placement(placement), **otherwise, **optional}
    return {**keys, **otherwise}


def _one_dim(pattern: str, placement: OneDim) -> dict[str, Any]:
    """Write a rule of `tensor_parallel`, which splits one dim: the outputs, or the inputs of kernels."""
    keys: dict[str, Any] = {"strategy": "tensor_parallel", "axis": placement.axis}
    if placement.min_dims == 1:
        outputs = {} if placement.dim == -1 else {"outputs": placement.dim}
        return {**keys, "columns": [pattern], **outputs}
    outputs = {} if placement.dim == -2 else {"outputs": 0}
    return {**keys, "columns": [], "rows": [pattern], **outputs}


def _placement(placement: Any) -> dict[str, Any]:
    if isinstance(placement, Storage):
        return {STORAGE_NAMES[placement.stored]: True, **({} if placement.spec is None else _placement(placement.spec))}
    if isinstance(placement, P):
        return {"spec": ["-" if e is None else e if isinstance(e, str) else list(e) for e in placement]}
    if isinstance(placement, Replicate):
        return {"replicate": True}
    if isinstance(placement, On):
        return {"on": list(placement.positions)}
    if isinstance(placement, Pipeline):
        return {"pipeline": dataclasses.asdict(placement)}
    assert isinstance(placement, Follow)
    return {"follow": placement.source}


def _table(keys: dict[str, Any]) -> str:
    return "\n".join(["[[rule]]", *(toml_line(key, value) for key, value in keys.items()), ""])
