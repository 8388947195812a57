"""Layers stacked for a scan: a rule written for one layer would split the layers instead of their inside."""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import Problem
from outlay.core.paths import Parts, split_path
from outlay.layout.globs import globs, globs_text
from outlay.layout.mirror import is_optimizer
from outlay.layout.placement import spec_text
from outlay.layout.plan import LeafPlan
from outlay.layout.policies import OneDim

if TYPE_CHECKING:
    from outlay.layout.resolve import Resolution

_LAYERS = re.compile(r"layer|block|stack|scan|repeat|trunk|^h$", re.IGNORECASE)
"""Names of what is often stacked."""

_NO_LAYERS = re.compile(r"expert|moe|head", re.IGNORECASE)
"""Names of what is stacked to be split: a device each."""

_BY_LAYER = re.compile(r"pipe|stage|layer|pp", re.IGNORECASE)
"""Axes over which layers are split on purpose."""


def find_stacks(shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The leaves whose dim 0 counts layers, each with their number.

    A stack is a subtree with the name of one (`layers`, `blocks`, `scan…`), all of whose arrays have the same first
    dim, some with two more dims. Stacked experts and heads are something else: those are split by that dim.

    >>> find_stacks({"layers.up": (8, 64, 256), "layers.bias": (8, 256), "embed": (1000, 64)})
    {'layers.up': 8, 'layers.bias': 8}
    >>> find_stacks({"layers.0.up": (64, 256), "layers.0.bias": (256,), "experts.up": (8, 64, 256)})
    {}
    """
    below: dict[Parts, list[str]] = collections.defaultdict(list)
    for path in shapes:
        parts = split_path(path)
        named = (i for i, part in enumerate(parts[:-1]) if _LAYERS.search(part) and not _NO_LAYERS.search(part))
        start = next(named, None)
        if start is not None and not is_optimizer(path):
            below[parts[: start + 1]].append(path)
    found: dict[str, int] = {}
    for paths in below.values():
        first = {tuple(shapes[path])[:1] for path in paths}
        deep = [tuple(shapes[path]) for path in paths if len(shapes[path]) > 2]
        is_one = len(first) == 1 and first != {()} and next(iter(first))[0] > 1
        are_kernels = all(shape[1] == shape[0] for shape in deep)  # of convolutions: (3, 3, inputs, outputs)
        if is_one and deep and not are_kernels and not all(_NO_LAYERS.search(path) for path in paths):
            found |= {path: shapes[path][0] for path in paths}
    return found


def check_stacks(leaves: Sequence[LeafPlan], resolution: Resolution) -> list[Problem]:
    """Rules that split stacked layers by layer without having said so."""
    stacks = resolution.stacks
    if not stacks:
        return []
    split: dict[int, list[LeafPlan]] = collections.defaultdict(list)
    for leaf in leaves:
        if leaf.path in stacks and leaf.kind == "state":
            for number in _misread(leaf, resolution):
                split[number].append(leaf)
    return [_problem(number, mine, stacks, resolution) for number, mine in sorted(split.items())]


def splits_by_layer(number: int, stacks: Mapping[str, int], resolution: Resolution) -> list[str]:
    """The stacked leaves that a rule splits by layer with a spec of one entry, meaning all of a stack."""
    rule = resolution.rules[number]
    if rule.spec is None or len(rule.spec) != 1 or _names_layers(rule.axes):
        return []
    owned = [path for path in stacks if resolution.claims[path].owners.get(0) == number]
    return [path for path in owned if not resolution.claims[path].is_whole]


def _misread(leaf: LeafPlan, resolution: Resolution) -> list[int]:
    """The rules that take a stacked leaf for one layer's: by a short spec, or by dims counted from the front."""
    claims, found = resolution.claims[leaf.path], []
    for dim, number in claims.owners.items():
        rule = resolution.rules[number]
        placement = rule.placement
        if claims.num_pieces(leaf.dims[dim]) == 1 or _names_layers(rule.axes):
            continue
        if isinstance(placement, OneDim):
            is_misread = dim == 0 or placement.dim >= 0
        elif rule.spec is not None:
            is_whole_stack = len(rule.spec) == 1 and _covers_stack(number, leaf.path, resolution)
            is_misread = dim == 0 and len(rule.spec) < len(leaf.shape) and not is_whole_stack
        else:
            is_misread = False
        if is_misread:
            found.append(number)
    return found


def _covers_stack(number: int, path: str, resolution: Resolution) -> bool:
    """Whether a rule reaches every leaf of the stack, so that its one entry must mean the dim they share."""
    parts = split_path(path)
    end = next(i for i, part in enumerate(parts) if _LAYERS.search(part) and not _NO_LAYERS.search(part)) + 1
    stack = [other for other in resolution.shapes if split_path(other)[:end] == parts[:end]]
    return len(stack) > 1 and all(number in resolution.matched[other] for other in stack)


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
    mine = [leaf.path for leaf in leaves]
    others = [path for path, got in resolution.applications[number].items() if path not in mine and got.wanted]
    fixes = []
    for shape_of_rule, paths in _by_edit(number, leaves, resolution).items():
        reach = globs(paths, set(resolution.shapes) - set(paths))
        fixes.append(globs_text(reach, shape_of_rule))
    verb = "add, before it," if others else "write, in its place,"
    fix = f"{verb} {', '.join(fixes)}"
    if rule.spec is not None:
        fixes = []
        for rank in dict.fromkeys(len(leaf.shape) for leaf in leaves):
            paths = [leaf.path for leaf in leaves if len(leaf.shape) == rank]
            whole_layers = P(*rule.spec, *[None] * (rank - len(rule.spec)))
            reach = globs(paths, set(resolution.shapes) - set(paths))
            fixes.append(globs_text(reach, spec_text(whole_layers, quote='"')))
        fix += f"\nor, if a device should have whole layers, {verb} {', '.join(fixes)}"
    return Problem("layer dim split", rule.named(number), what, fix)


def _by_edit(number: int, leaves: Sequence[LeafPlan], resolution: Resolution) -> dict[str, list[str]]:
    """What to write for the leaves: the same one dim further on, where that exists and divides, else whole."""
    rule = resolution.rules[number]
    edits: dict[str, list[str]] = collections.defaultdict(list)
    for leaf in leaves:
        claims = resolution.claims[leaf.path]
        if rule.spec is not None:
            shifted = P(None, *rule.spec)
        else:
            (dim,) = (dim for dim, owner in claims.owners.items() if owner == number)
            from_end = isinstance(rule.placement, OneDim) and rule.placement.dim < 0
            shifted = P() if from_end else P(*[None] * (dim + 1), *rule.axes)
        fits = len(shifted) <= len(leaf.shape) and all(
            claims.divides(dim, axes) for dim, axes in claims.wanted(shifted)
        )
        edits[spec_text(shifted, quote='"') if fits and len(shifted) else "outlay.replicate()"].append(leaf.path)
    return edits
