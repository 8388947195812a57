"""Resolve rules to a plan: apply them to each leaf in order, let copies follow, then run the checks."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp

from outlay.core.annotations import read_annotations
from outlay.core.array_leaves import arrays_only, is_array, non_arrays
from outlay.core.error_types import LayoutError, Problem
from outlay.core.paths import Parts, flatten_paths, only_path, pattern_parts, split_path, under
from outlay.core.quantities import counted
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.apply import Application, apply_rule
from outlay.layout.check_leaves import check_leaves, copies_at_odds
from outlay.layout.check_rules import GRADIENTS, OUTPUTS, TreeFacts, check_rules, unknown_axes, unknown_positions
from outlay.layout.check_stacks import check_stacks, find_stacks
from outlay.layout.leaf_assignment import LeafAssignment
from outlay.layout.optimizer_state import MirroredLeaves, copy_names, followers, is_optimizer
from outlay.layout.placement import Follow, Storage
from outlay.layout.plan import LeafPlan, Plan
from outlay.layout.plan_notes import notes_on_mesh, notes_on_rules
from outlay.layout.rule import Kind, Rule

Shapes = Mapping[Kind, Mapping[str, tuple[tuple[int, ...], str]]]
"""Shape and dtype of every leaf, by kind and path."""


def resolve(
    rules: Sequence[Rule], state: Any, mesh: MeshInfo, batch: Any, intermediates: Any, max_whole_bytes: int
) -> Plan:
    """Make the plan of these rules for these trees; see `Layout.plan`."""
    state = arrays_only(state)
    problems = unknown_axes(rules, mesh)
    if problems:  # every later check would only report the same axes again
        raise LayoutError(f"the layout names {counted(len(problems), 'axis', 'axes')} that {mesh} lacks:", problems)
    problems = unknown_positions(rules, mesh)
    if problems:
        raise LayoutError(f"the layout names devices that {mesh} lacks: {counted(len(problems), 'rule')}", problems)
    shapes: Shapes = {
        "state": _shapes(state),
        "batch": _shapes({"batch": batch} if batch is not None else {}),
        "intermediate": _named_shapes(intermediates or {}),
    }
    if problems := _named_as_leaves(shapes):
        raise LayoutError(f"{counted(len(problems), 'value')} inside the step named as leaves are:", problems)
    resolution = Resolution(rules, mesh, shapes)
    leaves = resolution.leaf_plans()
    names = {split_path(path)[0] for kind in ("batch", "intermediate") for path in shapes[kind]}
    givens = (("batch", batch), (GRADIENTS, intermediates), (OUTPUTS, intermediates))
    # A plan of the state alone leaves rules for the batch, gradients and outputs unchecked.
    not_given = {name for name, given in givens if given is None}
    tree = TreeFacts(leaves, names, not_given, none_paths(state) + none_paths({"batch": batch}))
    copies = copies_at_odds(leaves, resolution)
    problems = [
        *resolution.problems,
        *check_leaves(leaves, resolution, max_whole_bytes, copies),
        *check_stacks(leaves, resolution),
        *check_rules(resolution, tree),
    ]
    if problems:
        raise LayoutError(f"the layout does not fit this tree on {mesh}: {counted(len(problems), 'problem')}", problems)
    # An intermediate value that no rule mentions is left to the compiler, so the plan has nothing to say about it.
    placed = tuple(leaf for leaf in leaves if leaf.kind != "intermediate" or leaf.is_placed or leaf.stored)
    on_rules = notes_on_rules(placed, resolution, max_whole_bytes, copies, read_annotations(state))
    return Plan(mesh, placed, (*notes_on_mesh(mesh, placed), *on_rules))


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
        self.mirrors = MirroredLeaves(self.shapes)
        self.copies = followers(self.shapes)
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
        if not sources or path in before:
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
        return path in self.copies and bool(copy_names(path) & {*pattern_parts(self.rules[number].pattern)})

    def _follows_original(self, path: str) -> bool:
        """Return whether a copy is placed like its original: that is split, and no rule is written for the copy."""
        theirs = self.assignments.get(self.copies[path])
        is_meant = any(self._means(number, path) for number in self.matched[path] if not self._only_stores(number))
        return theirs is not None and theirs.is_split and not is_meant

    def _apply(self, number: int, assignment: LeafAssignment) -> None:
        rule = self.rules[number]
        if isinstance(rule.placement, Follow):
            followed = self._follow(assignment, self.mirrors.of(assignment.path, rule.placement.source))
            application = Application(requested=True, granted=followed)
            if not followed:  # a rule to follow does not cover a leaf that mirrors nothing
                self.matched[assignment.path] = [i for i in self.matched[assignment.path] if i != number]
        else:
            application = apply_rule(rule, number, assignment)
        if self._only_stores(number):  # another rule must say how the leaf is split
            self.matched[assignment.path] = [i for i in self.matched[assignment.path] if i != number]
        self.applications[number][assignment.path] = application

    def _only_stores(self, number: int) -> bool:
        rule = self.rules[number]
        return isinstance(rule.placement, Storage) and rule.spec is None

    def _follow(self, assignment: LeafAssignment, mirrored: Sequence[str], *, is_placed: bool = False) -> bool:
        """Place a leaf like the one that it mirrors; `is_placed` if a rule for this very leaf was applied before."""
        sources = [path for path in mirrored if path in self.assignments]
        if not sources or assignment.closed_by is not None:
            return False
        if len({self._placement_of(path) for path in sources}) > 1:
            if not is_placed:
                assignment.problems.append(_ambiguous(assignment.path, sources))
            return is_placed
        theirs = self.assignments[sources[0]]
        self.followed[assignment.path] = sources[0]
        assignment.reasons.append(f"follows {sources[0]}")
        for dim, axes in theirs.split_dims(theirs.spec()):
            assignment.claim(dim, axes)
        if theirs.positions is not None and not assignment.is_split:
            assignment.positions, assignment.closed_by = theirs.positions, theirs.closed_by
        assignment.stored = assignment.stored or theirs.stored
        assignment.deciding_rules += [n for n in theirs.deciding_rules if n not in assignment.deciding_rules]
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


def _shapes(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype name of every leaf, by path; raise if leaves are not arrays, listing all of them."""
    named = flatten_paths(tree)[0]
    if not all(is_array(leaf) for _, leaf in named):
        problems = non_arrays(tree)
        count = counted(len(problems), "leaf of the tree is not an array", "leaves of the tree are not arrays")
        raise LayoutError(f"{count} and cannot be laid out:", problems)
    return {path: _shape_of(leaf) for path, leaf in named}


def _named_shapes(values: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the same for values inside a step, below the names that it gives them; a name may have several parts."""
    return {
        under(name, path): shape_and_dtype
        for name, tree in values.items()
        for path, shape_and_dtype in _shapes(tree).items()
    }


def _named_as_leaves(shapes: Shapes) -> list[Problem]:
    return [
        Problem("same path twice", path, f"a rule could not tell the value from the leaf of the {kind}", "rename it")
        for kind in ("state", "batch")
        for path in shapes["intermediate"]
        if path in shapes[kind]
    ]


def none_paths(tree: Any) -> list[str]:
    """Return the paths at which a tree holds `None`, which is not a leaf."""
    if len(jax.tree.leaves(tree, is_leaf=lambda x: x is None)) == len(jax.tree.leaves(tree)):
        return []
    marked = jax.tree.map(lambda x: 0 if x is None else x, tree, is_leaf=lambda x: x is None)
    leaves = {path for path, _ in flatten_paths(tree)[0]}
    return [path for path, _ in flatten_paths(marked)[0] if path not in leaves]


def _shape_of(leaf: Any) -> tuple[tuple[int, ...], str]:
    if hasattr(leaf, "shape"):
        return tuple(leaf.shape), _dtype_name(leaf.dtype, jax.config.values["jax_enable_x64"])
    return (), str(jnp.result_type(leaf))


@functools.lru_cache(maxsize=256)
def _dtype_name(dtype: Any, x64: bool) -> str:
    """Return the dtype that JAX will use, and that has to fit: float32 for NumPy's float64 unless x64 is enabled."""
    is_key = jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    return str(dtype if is_key else jax.dtypes.canonicalize_dtype(dtype))
