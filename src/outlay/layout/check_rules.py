"""Check the rules of a layout: the mesh lacks what they name, they match nothing, or get less than they ask for."""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from outlay.core.error_types import Problem
from outlay.core.paths import first_part, matches, split_path
from outlay.core.quantities import counted, listed
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.apply import Application
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import OPTIMIZER_ROOTS, Follow, On, is_optimizer
from outlay.layout.resolve import Resolution
from outlay.layout.rule import Rule

BATCH = "batch"
"""The name of the batch, and the kind of its leaves."""

GRADIENTS = "grads"
"""The name under which a step constrains its gradients, for `zero2`."""

OUTPUTS = "outputs"
"""The name of what a step returns besides its state."""


@dataclass(frozen=True)
class TreeFacts:
    """The leaves that rules are checked against.

    Attributes:
        leaves: every leaf.
        checked_roots: names of the batch and of values inside the step, which a leading wildcard does not reach.
        not_given: names of trees that were not passed to the plan.
        nones: paths at which the tree holds `None`.
    """

    leaves: Sequence[LeafPlan]
    checked_roots: Collection[str]
    not_given: Collection[str]
    nones: Sequence[str] = field(default=())


def unknown_axes(rules: Sequence[Rule], mesh: MeshInfo) -> list[Problem]:
    """Return the axes that rules name and the mesh lacks."""
    return [
        Problem("unknown axis", rule.named(number), f"axis {axis!r} is not in {mesh}", _axis_fix(axis, mesh))
        for number, rule in enumerate(rules)
        for axis in dict.fromkeys(rule.axes)
        if axis not in mesh.axis_sizes
    ]


def unknown_positions(rules: Sequence[Rule], mesh: MeshInfo) -> list[Problem]:
    """Return the positions that rules name and the mesh lacks; rules with the same positions are one problem."""
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


_LOOKED_FOR = 40
"""Rules that match nothing for which similar paths are looked for: of more, a message shows the number alone."""


def check_rules(resolution: Resolution, tree: TreeFacts) -> list[Problem]:
    """Return the problems of rules that are duplicates, match nothing, or get less than they ask for."""
    rules, problems, num_unused = resolution.rules, [], 0
    alike: dict[str, list[int]] = collections.defaultdict(list)
    for number, rule in enumerate(rules):
        alike[rule.pattern].append(number)
    for number, (rule, applications) in enumerate(zip(rules, resolution.applications, strict=True)):
        earlier = [i for i in alike[rule.pattern] if i < number and rules[i] == rule]
        if first_part(rule.pattern) in tree.not_given or rule.optional or (rule.is_by_source and not applications):
            continue  # for a tree that was not given, allowed to match nothing, or checked when the step is traced
        if earlier:
            what = f"the same as {rules[earlier[0]].named(earlier[0])}"
            problems.append(Problem("duplicate rule", rule.named(number), what, "delete one of the two"))
        elif not applications and rule.pattern != "**":  # `**` is not a typo: the tree is empty
            problems.append(_unused(number, rule, tree, is_looked_for=num_unused < _LOOKED_FOR))
            num_unused += 1
        elif _is_shadowed(applications):
            problems.append(_shadowed(number, resolution))
        elif problem := _partly_shadowed(number, resolution):
            problems.append(problem)
    return problems


def _unused(number: int, rule: Rule, tree: TreeFacts, *, is_looked_for: bool) -> Problem:
    """Return the problem of a rule whose pattern matches no leaf, with what was probably meant."""
    what = f"the pattern matches {_none_of(tree)}"
    absent = [path for path in tree.nones if matches(rule.pattern, path)]
    if absent:
        what += f": {absent[0]} is None, so there is no array to place"
    fix = "delete the rule, or allow it to match nothing with outlay.Rule(..., optional=True)"
    fix = _unused_fix(rule, tree, fix) if is_looked_for and not absent else fix
    return Problem("unused rule", rule.named(number), what, fix)


def _none_of(tree: TreeFacts) -> str:
    """Return what it does not match, in numbers that can be counted: the rows of a printed plan, and named values."""
    others = [leaf for leaf in tree.leaves if leaf.kind == "intermediate" and not (leaf.is_placed or leaf.stored)]
    num_rows, num_values = len(tree.leaves) - len(others), sum(split_path(leaf.path)[0] != OUTPUTS for leaf in others)
    values = f" and {counted(num_values, 'named value')} of the step" if num_values else ""
    return f"none of the {counted(num_rows, 'leaf', 'leaves')}{values}"


def _unused_fix(rule: Rule, tree: TreeFacts, otherwise: str) -> str:
    pattern, paths = rule.pattern, [leaf.path for leaf in tree.leaves]
    hidden = [path for path in paths if matches(pattern, path) and split_path(path)[0] in tree.checked_roots]
    if hidden:
        root = split_path(hidden[0])[0]
        return f'a leading wildcard reaches the state only; write "{root}.**" for {hidden[0]}'
    anchored = [path for path in paths if matches(f"**.{pattern}", path) or matches(f"{pattern}.**", path)]
    if anchored:
        first = min(anchored, key=is_optimizer)  # a parameter is a better example than its moment
        root = split_path(first)[0]
        start = f"{root}.**" if root in tree.checked_roots else "**"
        longer = f"{start}.{pattern}" if matches(f"**.{pattern}", first) else f"{pattern}.**"
        more = f" and {len(anchored) - 1} more" if len(anchored) > 1 else ""
        return f'patterns are anchored at both ends; write "{longer}" (it matches {first}{more})'
    if rule.names(GRADIENTS):
        return f'name them in the step: grads = outlay.constrain(grads, "{GRADIENTS}"), or delete the rule'
    if (root := first_part(pattern)) in OPTIMIZER_ROOTS and root not in {split_path(path)[0] for path in paths}:
        return "this optimizer keeps no state (SGD without momentum does not): delete the rule"
    if root == BATCH and not any(leaf.kind == BATCH for leaf in tree.leaves):
        return "the batch holds no array: leave out outlay.data_parallel(), or delete the rule"
    # Leading wildcards reach the state only, so nothing else may be suggested for them.
    reached = [leaf.path for leaf in tree.leaves if leaf.kind == "state" or root is not None]
    from outlay.layout.suggested_patterns import similar_patterns

    return f"{similar_patterns(pattern, reached)}\nor {otherwise}"


def _is_shadowed(applications: Mapping[str, Application]) -> bool:
    """Return whether a rule asked for something and got nothing, or was applied to no leaf."""
    each = applications.values()
    if each and all(a.deferred for a in each):
        return True
    return any(a.requested for a in each) and not any(a.granted for a in each)


def _shadowed(number: int, resolution: Resolution) -> Problem:
    rule, applications = resolution.rules[number], resolution.applications[number]
    if isinstance(rule.placement, Follow):
        return _follows_nothing(number, rule.placement.source, resolution)
    following = [path for path in applications if path in resolution.followed]
    winners = _winners(number, resolution, [path for path in applications if path not in following])
    by = ", ".join(resolution.rules[i].named(i) for i in winners)
    if following:
        by += f"{' and ' if by else ''}the parameters that {len(following)} of these leaves follow"
    what = f"it matches {counted(len(applications), 'leaf', 'leaves')}, but earlier claims leave it nothing: {by}"
    return Problem("shadowed rule", rule.named(number), what, _shadowed_fix(number, winners, following, resolution))


def _partly_shadowed(number: int, resolution: Resolution) -> Problem | None:
    """Return the problem of a rule for some leaves behind a general one that already uses their dim or axis."""
    rule, applications = resolution.rules[number], resolution.applications
    lost = [path for path, a in applications[number].items() if a.lost]
    applied = _applied(applications[number])
    winners = _winners(number, resolution, lost)
    # The other order, the particular before the general, is how exceptions are written.
    general = [i for i in winners if applied <= _applied(applications[i])]
    if not general:
        return None
    by = ", ".join(resolution.rules[i].named(i) for i in general)
    what = (
        f"it applies to {len(applied) - len(lost)} of the {counted(len(applied), 'leaf', 'leaves')} it matches; "
        f"{by} comes first and already uses the dim or the axis of {listed(lost)}"
    )
    return Problem("partly shadowed rule", rule.named(number), what, _shadowed_fix(number, general, [], resolution))


def _applied(applications: Mapping[str, Application]) -> set[str]:
    return {path for path, a in applications.items() if not a.deferred}


def _winners(number: int, resolution: Resolution, lost: Sequence[str]) -> list[int]:
    """Return the earlier rules that claimed something of these leaves."""
    before = {i for path in lost for i in resolution.assignments[path].deciding_rules if i < number}
    return sorted(before)


def _shadowed_fix(number: int, winners: Sequence[int], following: Sequence[str], resolution: Resolution) -> str:
    """Return the fix of a shadowed rule: moving it if that was tried and helps, else deleting it or another pattern."""
    rule = resolution.rules[number]
    if winners and _would_help(number, winners[0], resolution):
        return f"move it before {resolution.rules[winners[0]].named(winners[0])}, or delete it"
    if not following:
        return "delete it: nothing changes, because everything it asks for is taken"
    if rule.is_policy or rule.names(split_path(following[0])[0]):
        return f"delete it: these leaves live where their parameters do, such as {resolution.followed[following[0]]}"
    root = split_path(following[0])[0]
    return f'begin its pattern with "{root}." to say otherwise for the optimizer, or delete it'


def _would_help(number: int, before: int, resolution: Resolution) -> bool:
    """Return whether a rule gets more if it comes before another, and nothing else gets worse."""
    rules = [*resolution.rules]
    rules.insert(before, rules.pop(number))
    moved = resolution.with_rules(rules)
    results = moved.applications[before].values()
    if any(a.lost for a in results) or not any(a.granted for a in results):
        return False
    # By identity, since two rules may be equal.
    old = {id(rule): applications for rule, applications in zip(resolution.rules, resolution.applications, strict=True)}
    for rule, applications in zip(moved.rules, moved.applications, strict=True):
        if _is_shadowed(applications) and not _is_shadowed(old[id(rule)]):
            return False
    touched = resolution.applications[number]
    others = [path for path in resolution.assignments if path not in touched and path not in moved.followed]
    return len(moved.problems) <= len(resolution.problems) and all(
        moved.assignments[path].final_dims() == resolution.assignments[path].final_dims() for path in others
    )


def _follows_nothing(number: int, source: str, resolution: Resolution) -> Problem:
    rule, paths = resolution.rules[number], list(resolution.applications[number])
    parts = split_path(source)
    what = (
        f"it matches {counted(len(paths), 'leaf', 'leaves')}, but none has the path ending and shape of a "
        f"leaf under {source!r}"
    )
    for copy in resolution.copies_among(paths):
        if source not in copy.sources and copy.sources != ("",):
            suggested = " or ".join(f'outlay.layout.follow("{each}")' for each in copy.sources)
            path, other = next(iter(copy.leaves.items()))
            fix = f"write {suggested}: {path} has the ending and shape of {other}"
            return Problem("follows nothing", rule.named(number), what, fix)
    state = [split_path(path) for path in resolution.shapes]
    if any(path[: len(parts)] == parts for path in state):
        from outlay.layout.suggested_patterns import globs, globs_text

        replicated = globs_text(globs(paths, set(resolution.shapes) - set(paths)), "outlay.replicate()")
        fix = f"write {replicated} in its place, or a spec for these leaves"
    else:
        from outlay.core.suggest import did_you_mean

        fix = did_you_mean(source, dict.fromkeys(path[0] for path in state if path))
    return Problem("follows nothing", rule.named(number), what, fix)


def _axis_fix(axis: str, mesh: MeshInfo) -> str:
    from outlay.core.suggest import did_you_mean

    hint = did_you_mean(axis, mesh.axis_sizes)
    return f"{hint}{'' if hint.endswith('?') else '.'} Or add it to the mesh: outlay.mesh({axis}=...)"
