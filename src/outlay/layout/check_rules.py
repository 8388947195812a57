"""Checks on the rules of a layout: axes that the mesh lacks, rules that match nothing or get nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from outlay.core.errors import Problem
from outlay.core.paths import join_parts, split_path
from outlay.core.patterns import first_part, matches, pattern_parts
from outlay.core.suggest import did_you_mean
from outlay.layout.apply import Application
from outlay.layout.mirror import OPTIMIZER_ROOTS, is_optimizer
from outlay.layout.placement import Follow
from outlay.layout.plan import LeafPlan
from outlay.layout.rule import Rule
from outlay.meshes.info import MeshInfo

GRADIENTS = "grads"
"""The name under which a step constrains its gradients, for `zero2`."""

OUTPUTS = "outputs"
"""The name of what a step returns besides its state."""


def unknown_axes(rules: Sequence[Rule], mesh: MeshInfo) -> list[Problem]:
    """Axes that the rules name and the mesh lacks."""
    return [
        Problem("unknown axis", _named(number, rule), f"axis {axis!r} is not in {mesh}", _axis_cure(axis, mesh))
        for number, rule in enumerate(rules)
        for axis in dict.fromkeys(rule.axes)
        if axis not in mesh.axis_sizes
    ]


def check_rules(
    rules: Sequence[Rule],
    applications: Sequence[Sequence[Application]],
    leaves: Sequence[LeafPlan],
    *,
    checked_roots: Collection[str],
    not_given: Collection[str],
) -> list[Problem]:
    """Rules that are written twice, match nothing, or are wholly in the shadow of earlier ones."""
    problems = []
    for number, (rule, found) in enumerate(zip(rules, applications, strict=True)):
        earlier = [i for i in range(number) if rules[i] == rule]
        if first_part(rule.pattern) in not_given:
            continue  # the plan was not asked for these
        if earlier and not rule.optional:
            what = f"the same as rule {earlier[0] + 1}"
            problems.append(Problem("duplicate rule", _named(number, rule), what, "delete one of the two"))
        elif not found and not rule.optional and rule.pattern != "**":  # that one is no typo: the tree is empty
            problems.append(_unused(number, rule, leaves, checked_roots))
        elif _is_shadowed(found) and not rule.optional:
            problems.append(_shadowed(number, rule, rules, leaves))
    return problems


def _is_shadowed(found: Sequence[Application]) -> bool:
    """Whether a rule wanted something and got nothing, or was never asked."""
    if found and all(a.deferred for a in found):
        return True
    return any(a.wanted for a in found) and not any(a.granted for a in found)


def _unused(number: int, rule: Rule, leaves: Sequence[LeafPlan], checked_roots: Collection[str]) -> Problem:
    paths = [leaf.path for leaf in leaves]
    what = f"the pattern matches none of the {len(paths)} leaves"
    hidden = [path for path in paths if matches(rule.pattern, path) and split_path(path)[0] in checked_roots]
    if hidden:
        root = split_path(hidden[0])[0]
        cure = f'a leading wildcard reaches the state only; write "{root}.**" for {hidden[0]}'
        return Problem("unused rule", _named(number, rule), what, cure)
    anchored = [path for path in paths if matches(f"**.{rule.pattern}", path) or matches(f"{rule.pattern}.**", path)]
    if anchored:
        first = min(anchored, key=is_optimizer)  # a parameter is a better example than its moment
        root = split_path(first)[0]
        start = f"{root}.**" if root in checked_roots else "**"
        longer = f"{start}.{rule.pattern}" if matches(f"**.{rule.pattern}", first) else f"{rule.pattern}.**"
        more = f" and {len(anchored) - 1} more" if len(anchored) > 1 else ""
        cure = f'patterns are anchored at both ends; write "{longer}" (it matches {first}{more})'
        return Problem("unused rule", _named(number, rule), what, cure)
    if rule.names(GRADIENTS):
        cure = f'name them in the step: grads = outlay.constrain(grads, "{GRADIENTS}"), or delete the rule'
        return Problem("unused rule", _named(number, rule), what, cure)
    if (root := first_part(rule.pattern)) in OPTIMIZER_ROOTS and root not in {split_path(path)[0] for path in paths}:
        cure = "this optimizer keeps no state (SGD without momentum does not): delete the rule"
        return Problem("unused rule", _named(number, rule), what, cure)
    meant = did_you_mean(rule.pattern, _likely(rule.pattern, paths))
    cure = f"{meant}\nor delete the rule, or allow it to match nothing with outlay.Rule(..., optional=True)"
    return Problem("unused rule", _named(number, rule), what, cure)


def _likely(pattern: str, paths: Sequence[str]) -> list[str]:
    """The pattern with one part replaced by a part that exists, where that makes it match something."""
    parts = pattern_parts(pattern)
    repaired = []
    for i, part in enumerate(parts):
        if "*" in part:
            continue
        reached = [path for path in paths if matches(".".join([*parts[:i], "*", *parts[i + 1 :]]), path)]
        for other in sorted({part for path in reached for part in split_path(path)}):
            candidate = ".".join([*parts[:i], join_parts((other,)), *parts[i + 1 :]])
            if any(matches(candidate, path) for path in reached):
                repaired.append(candidate)
    return repaired or list(paths)


def _shadowed(number: int, rule: Rule, rules: Sequence[Rule], leaves: Sequence[LeafPlan]) -> Problem:
    mine = [leaf for leaf in leaves if rule.matches(leaf.path, leaf.kind)]
    if isinstance(rule.placement, Follow):
        return _leads_nowhere(number, rule, rule.placement.source, len(mine), leaves)
    winners = dict.fromkeys(i for leaf in mine for i in range(number) if rules[i].matches(leaf.path, leaf.kind))
    by = ", ".join(_named(i, rules[i]) for i in winners) or "the parameters that these leaves follow"
    what = f"it matches {len(mine)} leaf(s), but earlier claims leave it nothing: {by}"
    cure = "move it before them, or delete it"
    if not winners:
        root = split_path(mine[0].path)[0]
        cure = f'begin its pattern with "{root}." to say otherwise for the optimizer, or delete it'
    return Problem("shadowed rule", _named(number, rule), what, cure)


def _leads_nowhere(number: int, rule: Rule, source: str, num_leaves: int, leaves: Sequence[LeafPlan]) -> Problem:
    roots = dict.fromkeys(path[0] for path in (split_path(leaf.path) for leaf in leaves) if path)
    what = f"it matches {num_leaves} leaf(s), but none has the path ending and shape of a leaf under {source!r}"
    cure = did_you_mean(source, roots) if source not in roots else "delete it, or give these leaves a spec"
    return Problem("follows nothing", _named(number, rule), what, cure)


def _axis_cure(axis: str, mesh: MeshInfo) -> str:
    return f"{did_you_mean(axis, mesh.axis_sizes)} Or add it to the mesh: outlay.mesh({axis}=...)"


def _named(number: int, rule: Rule) -> str:
    return f'rule {number + 1} ("{rule.pattern}", {rule.placement})'
