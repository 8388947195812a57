"""Resolve rules: apply them to each leaf in order, and let copies follow. `Layout.plan` checks the result."""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from outlay.core.error_types import Problem
from outlay.core.paths import Parts, only_path, pattern_parts, split_path
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.apply import Application, apply_rule
from outlay.layout.leaf_plan import LeafAssignment, LeafPlan
from outlay.layout.placement import Follow, Storage, is_of_products, is_optimizer
from outlay.layout.rule import Kind, Rule

if TYPE_CHECKING:
    from outlay.layout.optimizer_state import Copies, MirroredLeaves

Shapes = Mapping[Kind, Mapping[str, tuple[tuple[int, ...], str]]]
"""Shape and dtype of every leaf, by kind and path."""


_LAYERS = re.compile(r"layer|block|stack|scan|repeat|trunk|^h$", re.IGNORECASE)
"""Names of subtrees that are often stacks of layers."""

_NO_LAYERS = re.compile(r"expert|moe|head", re.IGNORECASE)
"""Names of subtrees that are stacked in order to be split, one per device."""


_LAST = 2**31  # sorts optimizer state behind every chain of leaves that follow one another


class Resolution:
    """What the rules assigned to every leaf, and what each rule got.

    Args:
        rules: the rules, in order.
        mesh: the mesh.
        leaves: shape and dtype of every leaf.

    Attributes:
        shapes: the shape of every state leaf.
        assignments: what each leaf got.
        matched: the numbers of the rules that cover each leaf.
        followed: the leaf that each following leaf follows.
        applications: for each rule, what it got of each leaf that it matches.
    """

    def __init__(self, rules: Sequence[Rule], mesh: MeshInfo, leaves: Shapes) -> None:
        self.rules = rules
        self.mesh = mesh
        self.leaves = leaves
        self.shapes = {path: shape for path, (shape, _) in leaves["state"].items()}
        self.assignments: dict[str, LeafAssignment] = {}
        self.matched: dict[str, list[int]] = {}
        self.followed: dict[str, str] = {}
        self.applications: list[dict[str, Application]] = [{} for _ in rules]
        self._follows = [rule for rule in rules if isinstance(rule.placement, Follow)]
        self._of_many: list[int] = []
        self._of_one: dict[Parts, list[int]] = {}  # a layout may have a rule for each of its leaves
        for number, rule in enumerate(rules):
            name = None if rule.is_by_source else only_path(rule.pattern)
            (self._of_many if name is None else self._of_one.setdefault(name, [])).append(number)
        for kind, shapes in leaves.items():
            for path in sorted(shapes, key=self._turn):
                self._resolve_leaf(path, *shapes[path], kind)

    @functools.cached_property
    def _have_alike(self) -> bool:
        """Whether two leaves of the state have the same last name; if not, none mirrors another."""
        return len({split_path(path)[-1:] for path in self.shapes}) < len(self.shapes)

    @functools.cached_property
    def mirrors(self) -> MirroredLeaves:
        """Finds the leaves that others mirror."""
        from outlay.layout.optimizer_state import MirroredLeaves

        return MirroredLeaves(self.shapes)

    @functools.cached_property
    def copies(self) -> dict[str, str]:
        """The original of each leaf that follows another by its name; see `followers`."""
        if not self._have_alike:
            return {}
        from outlay.layout.optimizer_state import followers

        return followers(self.shapes)

    def copies_among(self, paths: Sequence[str]) -> list[Copies]:
        """Return which of these leaves are copies of others; see `find_copies`."""
        if not (paths and self._have_alike):
            return []
        from outlay.layout.optimizer_state import find_copies

        return find_copies(self.shapes, paths)

    @property
    def problems(self) -> list[Problem]:
        """What does not fit, leaf by leaf."""
        return [problem for assignment in self.assignments.values() for problem in assignment.problems]

    @functools.cached_property
    def stacks(self) -> dict[str, int]:
        """The leaves whose dim 0 counts stacked layers, each with the number of layers."""
        return find_stacks(self.shapes)

    def with_rules(self, rules: Sequence[Rule]) -> Resolution:
        """Resolve other rules for the same leaves, to try out an edit."""
        return Resolution(rules, self.mesh, self.leaves)

    def leaf_plans(self) -> list[LeafPlan]:
        """Return the plan of every leaf."""
        return [self._leaf_plan(path, kind) for kind, shapes in self.leaves.items() for path in shapes]

    def _turn(self, path: str) -> int:
        """Return the turn of a leaf: after the leaves that it follows; optimizer state comes last."""
        return _LAST if is_optimizer(path) else self._num_hops(self.copies.get(path, path), ()) + (path in self.copies)

    def _num_hops(self, path: str, before: tuple[str, ...]) -> int:
        """Return the length of the chain of `follow` rules that starts at this leaf."""
        sources = [cast(Follow, rule.placement).source for rule in self._follows if rule.matches(path, "state")]
        if not sources or path in before:  # rules may follow one another in a circle
            return 0
        leaders = [other for source in sources for other in self.mirrors.of(path, source)]
        return 1 + max((self._num_hops(other, (*before, path)) for other in leaders), default=0)

    def _resolve_leaf(self, path: str, shape: tuple[int, ...], dtype: str, kind: Kind) -> None:
        """Apply the rules that match a leaf, in order; following precedes rules that are not written for this leaf."""
        assignment = self.assignments[path] = LeafAssignment(path, shape, dtype, self.mesh.axis_sizes, kind)
        may_match = sorted([*self._of_one.get(split_path(path), ()), *self._of_many])
        self.matched[path] = [number for number in may_match if self.rules[number].matches(path, kind)]
        first, rest = self._split_rules(path)
        for number in first:
            self._apply(number, assignment)
        if kind == "state" and path in self.copies and self._follows_original(path):
            self._follow(assignment, [self.copies[path]])
        if kind == "state" and is_optimizer(path) and path not in self.followed:
            is_placed = any(not self._only_stores(number) for number in first)
            self._follow(assignment, self.mirrors.of(path), is_placed=is_placed)
        for number in rest:
            if path in self.followed and not self._means(number, path):
                # It lives where its parameter does; a rule for the optimizer has to begin with its name (decision 5).
                self.applications[number][path] = Application(requested=False, granted=False, deferred=True)
            else:
                self._apply(number, assignment)

    def _leaf_plan(self, path: str, kind: Kind) -> LeafPlan:
        assignment = self.assignments[path]
        ids = self.mesh.device_ids
        deciding_rules = assignment.deciding_rules or ([] if assignment.is_scalar else self.matched[path][:1])
        return LeafPlan(
            path=path,
            kind=kind,
            shape=assignment.shape,
            dtype=assignment.dtype,
            dims=assignment.final_dims(),
            local_shape=assignment.local_shape(),
            device_ids=ids
            if assignment.positions is None
            else tuple(ids[position] for position in assignment.positions),
            rule="; ".join(f"{number + 1}. {self.rules[number].pattern}" for number in deciding_rules),
            reason="; ".join(assignment.reasons) or self._default_reason(assignment),
            stored=assignment.stored,
            is_placed=kind != "intermediate" or bool(self.matched[path]),
        )

    def _split_rules(self, path: str) -> tuple[list[int], list[int]]:
        """Split rules into those before and after following: fixed placements that name the optimizer come before."""
        matched = self.matched[path]
        if not is_optimizer(path):
            return [], matched
        root = split_path(path)[0]
        first = [i for i in matched if self.rules[i].names(root) and not self.rules[i].is_policy]
        return first, [i for i in matched if i not in first]

    def _means(self, number: int, path: str) -> bool:
        """Return whether a rule is written for a leaf that follows: it begins with a plain name, or names the copy."""
        if self.rules[number].names(split_path(path)[0]):
            return True
        if path not in self.copies:
            return False
        from outlay.layout.optimizer_state import copy_names

        return bool(copy_names(path) & {*pattern_parts(self.rules[number].pattern)})

    def _follows_original(self, path: str) -> bool:
        """Return whether a copy is placed like its original: that is split, and no rule is written for the copy."""
        original = self.assignments.get(self.copies[path])
        is_meant = any(self._means(number, path) for number in self.matched[path] if not self._only_stores(number))
        return original is not None and original.is_split and not is_meant

    def _apply(self, number: int, assignment: LeafAssignment) -> None:
        rule = self.rules[number]
        if isinstance(rule.placement, Follow):
            followed = self._follow(assignment, self.mirrors.of(assignment.path, rule.placement.source))
            application, covers = Application(requested=True, granted=followed), followed
        else:
            application, covers = apply_rule(rule, number, assignment), not self._only_stores(number)
        if not covers:  # it mirrors nothing; or another rule must say how the leaf is split
            self.matched[assignment.path] = [i for i in self.matched[assignment.path] if i != number]
        self.applications[number][assignment.path] = application

    def _only_stores(self, number: int) -> bool:
        rule = self.rules[number]
        return is_of_products(rule.placement) or (isinstance(rule.placement, Storage) and rule.spec is None)

    def _follow(self, assignment: LeafAssignment, mirrored: Sequence[str], *, is_placed: bool = False) -> bool:
        """Place a leaf like the one that it mirrors; `is_placed` if a rule for this very leaf was applied before."""
        sources = [path for path in mirrored if path in self.assignments]
        if not sources or assignment.closed_by is not None:
            return False
        if len({self._placement_of(path) for path in sources}) > 1:
            if not is_placed:
                assignment.problems.append(_ambiguous(assignment.path, sources))
            return is_placed
        source = self.assignments[sources[0]]
        self.followed[assignment.path] = sources[0]
        assignment.reasons.append(f"follows {sources[0]}")
        for dim, axes in source.split_dims(source.spec()):
            assignment.claim(dim, axes)
        if source.positions is not None and not assignment.is_split:
            assignment.positions, assignment.closed_by = source.positions, source.closed_by
        assignment.stored = assignment.stored or source.stored
        assignment.deciding_rules += [n for n in source.deciding_rules if n not in assignment.deciding_rules]
        return True

    def _placement_of(self, path: str) -> tuple[Any, ...]:
        assignment = self.assignments[path]
        return assignment.final_dims(), assignment.positions, assignment.closed_by, assignment.stored

    def _default_reason(self, assignment: LeafAssignment) -> str:
        if assignment.is_scalar:
            return "it has no elements: nothing to split" if 0 in assignment.shape else "a scalar is whole everywhere"
        if not self.matched[assignment.path]:
            return "no rule mentions it"
        return f"rule {self.matched[assignment.path][0] + 1} leaves it whole"


def _ambiguous(path: str, sources: Sequence[str]) -> Problem:
    what = f"it mirrors {len(sources)} leaves with different placements: {', '.join(sources)}"
    root, source = split_path(path)[0], split_path(sources[0])[0]
    fix = f'say which one: ("{root}.**", outlay.layout.follow("{source}"))'
    return Problem("ambiguous parameter", path, what, fix)


def find_stacks(shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the leaves whose dim 0 counts layers, each with the number of layers.

    A stack is a subtree with a typical name (`layers`, `blocks`, `scan…`), all of whose arrays have the same first dim,
    some with two more dims. Stacked experts and heads are something else: those are meant to be split by that dim.

    >>> find_stacks({"layers.up": (8, 64, 256), "layers.bias": (8, 256), "embed": (1000, 64)})
    {'layers.up': 8, 'layers.bias': 8}
    >>> find_stacks({"layers.0.up": (64, 256), "layers.0.bias": (256,), "experts.up": (8, 64, 256)})
    {}
    """
    below: dict[Parts, list[str]] = collections.defaultdict(list)
    for path in shapes:
        if (stack := stack_of(path)) and not is_optimizer(path):
            below[stack].append(path)
    stacks: dict[str, int] = {}
    for paths in below.values():
        first = {tuple(shapes[path])[:1] for path in paths}
        deep = [tuple(shapes[path]) for path in paths if len(shapes[path]) > 2]
        is_one = len(first) == 1 and first != {()} and next(iter(first))[0] > 1
        are_kernels = all(shape[1] == shape[0] for shape in deep)  # of convolutions: (3, 3, inputs, outputs)
        if is_one and deep and not are_kernels and not all(_NO_LAYERS.search(path) for path in paths):
            stacks |= {path: shapes[path][0] for path in paths}
    return stacks


def stack_of(path: str) -> Parts:
    """Return the outermost subtree around a leaf whose name is typical for a stack; empty if there is none.

    >>> stack_of("params.layers.mlp.up"), stack_of("params.layer_norm")
    (('params', 'layers'), ())
    """
    parts = split_path(path)
    named = (i for i, part in enumerate(parts[:-1]) if _LAYERS.search(part) and not _NO_LAYERS.search(part))
    return parts[: next(named, -1) + 1]
