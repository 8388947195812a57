"""Checks on the rules of a layout: places that the mesh lacks, rules that match nothing or get less than they ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from outlay.core.error_types import Problem
from outlay.core.paths import first_part, split_path
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.devices.info import MeshInfo
from outlay.layout.apply import Application
from outlay.layout.globs import globs, globs_text
from outlay.layout.mirror import find_copies
from outlay.layout.near_misses import TreeFacts, unused
from outlay.layout.placement import Follow, On
from outlay.layout.rule import Rule

if TYPE_CHECKING:
    from outlay.layout.resolve import Resolution

GRADIENTS = "grads"
"""The name under which a step constrains its gradients, for `zero2`."""

OUTPUTS = "outputs"
"""The name of what a step returns besides its state."""


def unknown_axes(rules: Sequence[Rule], mesh: MeshInfo) -> list[Problem]:
    """Axes that the rules name and the mesh lacks."""
    return [
        Problem("unknown axis", rule.named(number), f"axis {axis!r} is not in {mesh}", _axis_fix(axis, mesh))
        for number, rule in enumerate(rules)
        for axis in dict.fromkeys(rule.axes)
        if axis not in mesh.axis_sizes
    ]


def unknown_positions(rules: Sequence[Rule], mesh: MeshInfo) -> list[Problem]:
    """Positions that the rules name and the mesh lacks; rules of one strategy for one place are one problem."""
    problems, seen = [], set()
    for number, rule in enumerate(rules):
        placement = rule.placement
        if not isinstance(placement, On) or placement in seen:
            continue
        seen.add(placement)
        missing = [p for p in placement.positions if not 0 <= p < mesh.num_devices]
        if missing:
            what = f"{placement} names position {missing[0]}, but {mesh} has positions 0 to {mesh.num_devices - 1}"
            problems.append(Problem("no such device", rule.named(number), what, "name a position that the mesh has"))
    return problems


def check_rules(resolution: Resolution, tree: TreeFacts) -> list[Problem]:
    """Rules that are written twice, match nothing, or that earlier ones leave less than they ask for."""
    rules, problems = resolution.rules, []
    for number, (rule, got) in enumerate(zip(rules, resolution.applications, strict=True)):
        earlier = [i for i in range(number) if rules[i] == rule]
        if first_part(rule.pattern) in tree.not_given or rule.optional or (rule.is_by_source and not got):
            continue  # not asked for, need not get anything, or seen to where the step is traced
        if earlier:
            what = f"the same as {rules[earlier[0]].named(earlier[0])}"
            problems.append(Problem("duplicate rule", rule.named(number), what, "delete one of the two"))
        elif not got and rule.pattern != "**":  # that one is no typo: the tree is empty
            problems.append(unused(number, rule, tree, GRADIENTS))
        elif _is_shadowed(got):
            problems.append(_shadowed(number, resolution))
        elif problem := _partly_shadowed(number, resolution):
            problems.append(problem)
    return problems


def _is_shadowed(got: Mapping[str, Application]) -> bool:
    """Whether a rule wanted something and got nothing, or was never asked."""
    if got and all(a.deferred for a in got.values()):
        return True
    return any(a.wanted for a in got.values()) and not any(a.granted for a in got.values())


def _shadowed(number: int, resolution: Resolution) -> Problem:
    rule, got = resolution.rules[number], resolution.applications[number]
    if isinstance(rule.placement, Follow):
        return _leads_nowhere(number, rule.placement.source, resolution)
    following = [path for path in got if path in resolution.followed]
    winners = _winners(number, resolution, [path for path in got if path not in following])
    by = ", ".join(resolution.rules[i].named(i) for i in winners)
    if following:
        by += f"{' and ' if by else ''}the parameters that {len(following)} of these leaves follow"
    what = f"it matches {counted(len(got), 'leaf', 'leaves')}, but earlier claims leave it nothing: {by}"
    return Problem("shadowed rule", rule.named(number), what, _make_way(number, winners, following, resolution))


def _partly_shadowed(number: int, resolution: Resolution) -> Problem | None:
    """A rule for particular leaves that came after a general one, which took what it asks for of some of them."""
    rule, got = resolution.rules[number], resolution.applications[number]
    lost = [path for path, a in got.items() if a.lost]
    mine = {path for path, a in got.items() if not a.deferred}
    winners = _winners(number, resolution, lost)
    # The other way round, the particular before the general, is how exceptions are written.
    general = [i for i in winners if mine <= {path for path, a in resolution.applications[i].items() if not a.deferred}]
    if not general:
        return None
    by = ", ".join(resolution.rules[i].named(i) for i in general)
    what = (
        f"it gets what it asks for of {len(mine) - len(lost)} of the {counted(len(mine), 'leaf', 'leaves')} "
        f"it matches; {by} came first "
    )
    what += f"and took the dim or the axis of {', '.join(lost[:3])}" + (f" and {len(lost) - 3} more" * (len(lost) > 3))
    return Problem("partly shadowed rule", rule.named(number), what, _make_way(number, general, [], resolution))


def _winners(number: int, resolution: Resolution, lost: Sequence[str]) -> list[int]:
    """The earlier rules that claimed something of these leaves."""
    before = {i for path in lost for i in resolution.claims[path].deciders if i < number}
    return sorted(before)


def _make_way(number: int, winners: Sequence[int], following: Sequence[str], resolution: Resolution) -> str:
    """The edits that help, of which each was tried."""
    rule = resolution.rules[number]
    if winners and _would_help(number, winners[0], resolution):
        return f"move it before {resolution.rules[winners[0]].named(winners[0])}, or delete it"
    if not following:
        return "delete it: nothing changes, for it gets nothing that is not taken"
    if rule.is_policy or rule.names(split_path(following[0])[0]):
        return f"delete it: these leaves live where their parameters do, such as {resolution.followed[following[0]]}"
    root = split_path(following[0])[0]
    return f'begin its pattern with "{root}." to say otherwise for the optimizer, or delete it'


def _would_help(number: int, before: int, resolution: Resolution) -> bool:
    """Whether a rule gets more if it comes before another, and nothing else becomes worse by that."""
    rules = [*resolution.rules]
    rules.insert(before, rules.pop(number))
    moved = resolution.again(rules)
    is_better = sum(a.lost for a in moved.applications[before].values()) == 0 and any(
        a.granted for a in moved.applications[before].values()
    )
    old = {id(rule): got for rule, got in zip(resolution.rules, resolution.applications, strict=True)}
    for rule, got in zip(moved.rules, moved.applications, strict=True):
        if _is_shadowed(got) and not _is_shadowed(old[id(rule)]):
            return False
    touched = resolution.applications[number]
    others = [path for path in resolution.claims if path not in touched and path not in moved.followed]
    return (
        is_better
        and len(moved.problems) <= len(resolution.problems)
        and all(moved.claims[path].settled() == resolution.claims[path].settled() for path in others)
    )


def _leads_nowhere(number: int, source: str, resolution: Resolution) -> Problem:
    rule, paths = resolution.rules[number], list(resolution.applications[number])
    parts = split_path(source)
    what = (
        f"it matches {counted(len(paths), 'leaf', 'leaves')}, but none has the path ending and shape of a "
        f"leaf under {source!r}"
    )
    known = {path[: len(parts)] for path in map(split_path, resolution.shapes)}
    for copy in find_copies(resolution.shapes, paths):
        if source not in copy.sources and copy.sources != ("",):
            meant = " or ".join(f'outlay.follow("{each}")' for each in copy.sources)
            return Problem("follows nothing", rule.named(number), what, f"write {meant}: {_mirrored(copy.leaves)}")
    if parts not in known:
        roots = dict.fromkeys(path[0] for path in map(split_path, resolution.shapes) if path)
        return Problem("follows nothing", rule.named(number), what, did_you_mean(source, roots))
    kept = globs_text(globs(paths, set(resolution.shapes) - set(paths)), "outlay.replicate()")
    return Problem(
        "follows nothing", rule.named(number), what, f"write {kept} in its place, or a spec for these leaves"
    )


def _mirrored(leaves: Mapping[str, str]) -> str:
    path, other = next(iter(leaves.items()))
    return f"{path} has the ending and shape of {other}"


def _axis_fix(axis: str, mesh: MeshInfo) -> str:
    hint = did_you_mean(axis, mesh.axis_sizes)
    return f"{hint}{'' if hint.endswith('?') else '.'} Or add it to the mesh: outlay.mesh({axis}=...)"
