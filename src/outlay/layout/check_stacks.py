"""Check layers that are stacked for a scan: a rule for one layer would split the stack instead of the layer."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import Problem
from outlay.core.paths import split_path
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import spec_text
from outlay.layout.policies import OneDim
from outlay.layout.resolve import Resolution, stack_of
from outlay.layout.suggested_patterns import globs, globs_text

_BY_LAYER = re.compile(r"pipe|stage|layer|pp|expert", re.IGNORECASE)
"""Axes over which the dim that counts layers, or experts, is split on purpose."""


def check_stacks(leaves: Sequence[LeafPlan], resolution: Resolution) -> list[Problem]:
    """Return the problems of rules that split a stack by layer though they look as if written for one layer."""
    stacks = resolution.stacks
    if not stacks:
        return []
    split: dict[int, list[LeafPlan]] = collections.defaultdict(list)
    for leaf in leaves:
        if leaf.path in stacks and leaf.kind == "state":
            for number in _misread(leaf, resolution):
                split[number].append(leaf)
    return [_problem(number, group, stacks, resolution) for number, group in sorted(split.items())]


def splits_by_layer(number: int, stacks: Mapping[str, int], resolution: Resolution) -> list[str]:
    """Return the stacked leaves that a rule splits by layer on purpose: one spec entry for a whole stack."""
    rule = resolution.rules[number]
    if rule.spec is None or len(rule.spec) != 1 or _names_layers(rule.axes):
        return []
    by_rule = [path for path in stacks if resolution.assignments[path].dim_rules.get(0) == number]
    return [path for path in by_rule if not resolution.assignments[path].is_whole]


def _misread(leaf: LeafPlan, resolution: Resolution) -> list[int]:
    """Return the rules that treat a stacked leaf as one layer: a spec too short, or dims counted from the front."""
    assignment, misread = resolution.assignments[leaf.path], []
    for dim, number in assignment.dim_rules.items():
        rule = resolution.rules[number]
        placement = rule.placement
        # An axis of one device splits nothing: a layout may run on a smaller mesh (decision 15).
        if assignment.num_pieces(leaf.dims[dim]) == 1 or _names_layers(rule.axes):
            continue
        if isinstance(placement, OneDim):
            is_misread = dim == 0 or placement.dim >= 0
        elif rule.spec is not None:
            is_whole_stack = len(rule.spec) == 1 and _covers_stack(number, leaf.path, resolution)
            is_misread = dim == 0 and len(rule.spec) < len(leaf.shape) and not is_whole_stack
        else:
            is_misread = False
        if is_misread:
            misread.append(number)
    return misread


def _covers_stack(number: int, path: str, resolution: Resolution) -> bool:
    """Return whether a rule reaches every leaf of the stack, so that its one entry must mean the dim they share."""
    stack = stack_of(path)
    leaves = [other for other in resolution.shapes if split_path(other)[: len(stack)] == stack]
    return len(leaves) > 1 and all(number in resolution.matched[other] for other in leaves)


def _names_layers(axes: Sequence[str]) -> bool:
    return any(_BY_LAYER.search(axis) for axis in axes)


def _problem(number: int, leaves: Sequence[LeafPlan], stacks: Mapping[str, int], resolution: Resolution) -> Problem:
    rule, first = resolution.rules[number], leaves[0]
    num = stacks[first.path]
    alike = sum(1 for path in stacks if stacks[path] == num)
    what = (
        f"dim 0 of {first.path} {first.shape} counts {num} stacked layers, as in {alike} leaves there; the rule, "
        f"written for the arrays of one layer, gives it {spec_text(first.spec)}"
    )
    group = [leaf.path for leaf in leaves]
    others = [
        path
        for path, application in resolution.applications[number].items()
        if path not in group and application.requested
    ]
    verb = "add, before it," if others else "write, in its place,"
    fix = f"{verb} {_rules_text(_placements_inside(number, leaves, resolution), resolution)}"
    if rule.spec is not None:
        by_spec: dict[str, list[str]] = collections.defaultdict(list)
        for leaf in leaves:
            by_layer = P(*rule.spec, *[None] * (len(leaf.shape) - len(rule.spec)))
            by_spec[spec_text(by_layer, quote='"')].append(leaf.path)
        fix += f"\nor, if a device should have whole layers, {verb} {_rules_text(by_spec, resolution)}"
    return Problem("layer dim split", rule.named(number), what, fix)


def _rules_text(paths_of: Mapping[str, Sequence[str]], resolution: Resolution) -> str:
    """Write rules that give each placement to exactly its leaves."""
    return ", ".join(
        globs_text(globs(paths, set(resolution.shapes) - set(paths)), placement)
        for placement, paths in paths_of.items()
    )


def _placements_inside(number: int, leaves: Sequence[LeafPlan], resolution: Resolution) -> dict[str, list[str]]:
    """Return placements that split inside the layers, one dim further on; whole if no dim there is divisible."""
    rule = resolution.rules[number]
    edits: dict[str, list[str]] = collections.defaultdict(list)
    for leaf in leaves:
        assignment = resolution.assignments[leaf.path]
        if rule.spec is not None:
            shifted = P(None, *rule.spec)
        else:
            (dim,) = (dim for dim, owner in assignment.dim_rules.items() if owner == number)
            from_end = isinstance(rule.placement, OneDim) and rule.placement.dim < 0
            shifted = P() if from_end else P(*[None] * (dim + 1), *rule.axes)
        fits = len(shifted) <= len(leaf.shape) and all(
            assignment.divides(dim, axes) for dim, axes in assignment.split_dims(shifted)
        )
        edits[spec_text(shifted, quote='"') if fits and len(shifted) else "outlay.replicate()"].append(leaf.path)
    return edits
