"""Write layouts as TOML that `read_layout` reads as an equal layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, Problem
from outlay.core.quantities import counted
from outlay.core.toml import toml_line
from outlay.layout.contexts import Context
from outlay.layout.fp8 import Fp8
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
    tables = [_table(keys) for keys in map(_keys_of, _grouped(layout.rules))]
    return "\n".join([*([head] if head else []), *([toml_line("mesh", mesh), ""] if mesh else []), *tables])


def unwritable(layout: Layout) -> list[Problem]:
    """Return the rules that a file cannot express: policies that no strategy makes."""
    alone = [group[0] for group in _grouped(layout.rules) if len(group) == 1]
    return [
        Problem("policy", rule.pattern, *_why_unwritable(rule))
        for rule in alone
        if rule.is_policy and not _is_known(rule)
    ]


def _why_unwritable(rule: Rule) -> tuple[str, str]:
    if isinstance(rule.placement, LargestDim | OneDim):
        return f"{rule} is one of the three rules of outlay.layout.hsdp", "keep the three together, in their order"
    return f"{rule} is a Python function", "keep the layout in Python, or write its specs as rules"


def _is_known(rule: Rule) -> bool:
    placement = rule.placement
    if isinstance(placement, Pipeline | Context | Fp8):
        return True
    if isinstance(placement, LargestDim):
        return not rule.optional and type(placement) is LargestDim
    return isinstance(placement, OneDim) and not rule.optional and len(placement.axes) == 1


def _grouped(rules: Sequence[Rule]) -> list[Sequence[Rule]]:
    """Return the rules that become a table each: two of `data_parallel` together, three of `hsdp`, others alone."""
    groups, position = [], 0
    while position < len(rules):
        candidates = (rules[position : position + 3], rules[position : position + 2], rules[position : position + 1])
        group = next(some for some in candidates if len(some) == 1 or _strategy_of(some))
        groups.append(group)
        position += len(group)
    return groups


def _strategy_of(rules: Sequence[Rule]) -> dict[str, Any]:
    """Write two rules of `data_parallel` or three of `hsdp` as one table; nothing if these are others."""
    first, second = rules[:2]
    if len(rules) == 2 and len(first.axes) == 1 and tuple(rules) == data_parallel(first.axes[0]).rules:
        return {"strategy": "data_parallel", "axis": first.axes[0]}
    if len(rules) < 3 or len(first.axes) != 2 or not isinstance(second.placement, LargestDim):
        return {}
    from outlay.layout.hybrid import hsdp

    across, inside = first.axes
    keys = {"min_size": second.placement.min_size, "pattern": second.pattern, "otherwise": second.otherwise}
    if across == inside or tuple(rules) != hsdp(inside, across, **keys).rules:
        return {}
    usual = {"pattern": "**", "otherwise": "error"}
    return {"strategy": "hsdp", "inside": inside, "across": across} | {
        key: value for key, value in keys.items() if usual.get(key) != value
    }


def _keys_of(group: Sequence[Rule]) -> dict[str, Any]:
    return _strategy_of(group) if len(group) > 1 else _keys(group[0])


def _keys(rule: Rule) -> dict[str, Any]:
    otherwise = {} if rule.otherwise == "error" else {"otherwise": rule.otherwise}
    placement = rule.placement
    if isinstance(placement, LargestDim):
        pattern = {} if rule.pattern == "**" else {"pattern": rule.pattern}
        axis = placement.axis if isinstance(placement.axis, str) else [*placement.axis]
        keys = {"strategy": "fsdp", "axis": axis, "min_size": placement.min_size, **pattern}
    elif isinstance(placement, OneDim):
        keys = _one_dim(rule.pattern, placement)
    else:
        optional = {"optional": True} if rule.optional else {}
        return {"match": rule.pattern, **_placement(placement), **otherwise, **optional}
    return {**keys, **otherwise}


def _one_dim(pattern: str, placement: OneDim) -> dict[str, Any]:
    """Write a rule of `tensor_parallel`, which splits one dim: the outputs, or the inputs of kernels."""
    keys: dict[str, Any] = {"strategy": "tensor_parallel", "axis": placement.axes[0]}
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
        given = dataclasses.asdict(placement)
        cut = given.pop("cut")
        own = {} if cut == "equal" else {"cut": cut if isinstance(cut, str) else list(cut)}
        return {"pipeline": given | own}
    if isinstance(placement, Context):
        return {"context": {key: value for key, value in dataclasses.asdict(placement).items() if value is not None}}
    if isinstance(placement, Fp8):
        return {"fp8": True if placement == Fp8() else dataclasses.asdict(placement)}
    assert isinstance(placement, Follow)
    return {"follow": placement.source}


def _table(keys: dict[str, Any]) -> str:
    return "\n".join(["[[rule]]", *(toml_line(key, value) for key, value in keys.items()), ""])
