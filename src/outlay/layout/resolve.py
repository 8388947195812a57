"""Resolve rules to a plan: for each leaf, the claims of the rules in order; then the checks over all of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.annotations import read_annotations
from outlay.core.array_leaves import arrays_only, is_array, non_arrays
from outlay.core.error_types import LayoutError, Problem
from outlay.core.paths import flatten_paths, join_parts, pattern_parts, split_path
from outlay.core.quantities import counted
from outlay.devices.info import MeshInfo
from outlay.layout.apply import Application, apply_rule, claim
from outlay.layout.check_leaves import check_leaves, copies_at_odds
from outlay.layout.check_rules import GRADIENTS, OUTPUTS, check_rules, unknown_axes, unknown_positions
from outlay.layout.check_stacks import check_stacks, find_stacks
from outlay.layout.claims import Claims
from outlay.layout.mirror import Mirrors, copy_names, followers, is_optimizer
from outlay.layout.near_misses import TreeFacts
from outlay.layout.notes import notes, notes_on_rules
from outlay.layout.placement import Follow
from outlay.layout.plan import LeafPlan, Plan
from outlay.layout.rule import Kind, Rule
from outlay.layout.storage import Storage

Shapes = Mapping[Kind, Mapping[str, tuple[tuple[int, ...], str]]]
"""Shape and dtype of every leaf, by kind and path."""


def resolve(
    rules: Sequence[Rule], state: Any, mesh: MeshInfo, batch: Any, intermediates: Any, max_whole_bytes: int
) -> Plan:
    """The plan of these rules for these trees; see `Layout.plan`."""
    state = arrays_only(state)
    problems = unknown_axes(rules, mesh)
    if problems:  # every later check would only repeat it
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
    # An intermediate value that no rule speaks of has no place to report: the compiler finds one.
    placed = tuple(leaf for leaf in leaves if leaf.kind != "intermediate" or leaf.is_placed or leaf.stored)
    on_rules = notes_on_rules(placed, resolution, max_whole_bytes, copies, read_annotations(state))
    return Plan(mesh, placed, (*notes(mesh, placed), *on_rules))


class Resolution:
    """The claims on every leaf, and what each rule got.

    Args:
        rules: the rules, in order.
        mesh: the mesh.
        leaves: shape and dtype of every leaf.
    """

    def __init__(self, rules: Sequence[Rule], mesh: MeshInfo, leaves: Shapes) -> None:
        self.rules = rules
        self.mesh = mesh
        self.leaves = leaves
        self.shapes = {path: shape for path, (shape, _) in leaves["state"].items()}
        self.mirrors = Mirrors(self.shapes)
        self.copies = followers(self.shapes)
        self.claims: dict[str, Claims] = {}
        self.matched: dict[str, list[int]] = {}
        self.followed: dict[str, str] = {}
        self.applications: list[dict[str, Application]] = [{} for _ in rules]
        self.problems: list[Problem] = []
        for kind, found in leaves.items():
            for path in sorted(found, key=self.turn):
                self.place(path, *found[path], kind)

    @functools.cached_property
    def stacks(self) -> dict[str, int]:
        """The leaves whose dim 0 counts layers, each with their number."""
        return find_stacks(self.shapes)

    def again(self, rules: Sequence[Rule]) -> Resolution:
        """The same leaves under other rules: what an edit would do."""
        return Resolution(rules, self.mesh, self.leaves)

    def leaf_plans(self) -> list[LeafPlan]:
        """The claims on every leaf as its plan."""
        return [self.leaf_plan(path, kind) for kind, found in self.leaves.items() for path in found]

    def turn(self, path: str) -> int:
        """Leaves that follow come after those whose place must be known to them; optimizer state comes last."""
        return _LAST if is_optimizer(path) else self._num_hops(self.copies.get(path, path), ()) + (path in self.copies)

    def _num_hops(self, path: str, before: tuple[str, ...]) -> int:
        """How many leaves, each told to follow the next, lead to one that is not."""
        told = [
            placement.source
            for rule in self.rules
            if isinstance(placement := rule.placement, Follow) and rule.matches(path, "state")
        ]
        if not told or path in before:
            return 0
        leaders = [other for source in told for other in self.mirrors.of(path, source)]
        return 1 + max((self._num_hops(other, (*before, path)) for other in leaders), default=0)

    def place(self, path: str, shape: tuple[int, ...], dtype: str, kind: Kind) -> None:
        """Apply every rule that speaks of a leaf, in the order of claims."""
        claims = self.claims[path] = Claims(path, shape, dtype, self.mesh.axis_sizes, kind)
        self.matched[path] = [i for i, rule in enumerate(self.rules) if rule.matches(path, kind)]
        first, rest = self._claim_order(path)
        for number in first:
            self._apply(number, claims)
        if kind == "state" and path in self.copies and self._follows_untold(path):
            self._follow(claims, [self.copies[path]], told=False)
        if kind == "state" and is_optimizer(path) and path not in self.followed:
            told = any(not self._only_stores(number) for number in first)
            self._follow(claims, self.mirrors.of(path), told=told)
        for number in rest:
            if path in self.followed and not self._means(number, path):
                # Its place is its parameter's; a rule that means the optimizer begins with its name.
                self.applications[number][path] = Application(wanted=False, granted=False, deferred=True)
            else:
                self._apply(number, claims)

    def leaf_plan(self, path: str, kind: Kind) -> LeafPlan:
        """The claims on a leaf as its plan."""
        claims = self.claims[path]
        ids = self.mesh.device_ids
        deciders = claims.deciders or ([] if claims.is_scalar else self.matched[path][:1])
        return LeafPlan(
            path=path,
            kind=kind,
            shape=claims.shape,
            dtype=claims.dtype,
            dims=claims.settled(),
            local_shape=claims.local_shape(),
            device_ids=ids if claims.positions is None else tuple(ids[position] for position in claims.positions),
            rule="; ".join(f"{number + 1}. {self.rules[number].pattern}" for number in deciders),
            reason="; ".join(claims.reasons) or self._default_reason(claims),
            stored=claims.stored,
            is_placed=kind != "intermediate" or bool(self.matched[path]),
        )

    def _claim_order(self, path: str) -> tuple[list[int], list[int]]:
        """Rules before and after following: a fixed placement that names the optimizer overrides its parameter."""
        matched = self.matched[path]
        if not is_optimizer(path):
            return [], matched
        root = split_path(path)[0]
        first = [i for i in matched if self.rules[i].names(root) and not self.rules[i].is_policy]
        return first, [i for i in matched if i not in first]

    def _means(self, number: int, path: str) -> bool:
        """Whether a rule means a leaf that follows: it begins with a plain name, or names what makes it a copy."""
        if self.rules[number].names(split_path(path)[0]):
            return True
        return path in self.copies and bool(copy_names(path) & {*pattern_parts(self.rules[number].pattern)})

    def _follows_untold(self, path: str) -> bool:
        """Whether a copy goes where a split leaf went, since no rule means it."""
        theirs = self.claims.get(self.copies[path])
        said = any(self._means(number, path) for number in self.matched[path] if not self._only_stores(number))
        return theirs is not None and theirs.is_split and not said

    def _apply(self, number: int, claims: Claims) -> None:
        rule = self.rules[number]
        if isinstance(rule.placement, Follow):
            followed = self._follow(claims, self.mirrors.of(claims.path, rule.placement.source), told=False)
            application = Application(wanted=True, granted=followed)
            if not followed:  # a leaf that mirrors nothing has not been covered by being told to follow
                self.matched[claims.path] = [i for i in self.matched[claims.path] if i != number]
        else:
            application = apply_rule(rule, number, claims, self.problems)
        if self._only_stores(number):  # how a leaf is split is still to be said
            self.matched[claims.path] = [i for i in self.matched[claims.path] if i != number]
        self.applications[number][claims.path] = application

    def _only_stores(self, number: int) -> bool:
        rule = self.rules[number]
        return isinstance(rule.placement, Storage) and rule.spec is None

    def _follow(self, claims: Claims, mirrored: Sequence[str], *, told: bool) -> bool:
        """Take the place of the leaf that this one mirrors; `told` when a rule has spoken of it already."""
        found = [path for path in mirrored if path in self.claims]
        if not found or claims.closed_by is not None:
            return False
        if len({self._place_of(path) for path in found}) > 1:
            if not told:
                self.problems.append(_ambiguous(claims.path, found))
            return told
        theirs = self.claims[found[0]]
        self.followed[claims.path] = found[0]
        claims.reasons.append(f"follows {found[0]}")
        for dim, axes in theirs.wanted(theirs.spec()):
            claim(claims, dim, axes)
        if theirs.positions is not None and not claims.is_split:
            claims.positions, claims.closed_by = theirs.positions, theirs.closed_by
        claims.stored = claims.stored or theirs.stored
        claims.deciders += [n for n in theirs.deciders if n not in claims.deciders]
        return True

    def _place_of(self, path: str) -> tuple[Any, ...]:
        claims = self.claims[path]
        return claims.settled(), claims.positions, claims.closed_by, claims.stored

    def _default_reason(self, claims: Claims) -> str:
        if claims.is_scalar:
            return "it holds no number: nothing to split" if 0 in claims.shape else "a scalar is whole everywhere"
        if not self.matched[claims.path]:
            return "no rule speaks of it"
        return f"rule {self.matched[claims.path][0] + 1} leaves it whole"


_LAST = 2**31


def _ambiguous(path: str, found: Sequence[str]) -> Problem:
    what = f"it mirrors {len(found)} leaves that live in different places: {', '.join(found)}"
    root, source = split_path(path)[0], split_path(found[0])[0]
    fix = f'say which one: ("{root}.**", outlay.follow("{source}"))'
    return Problem("ambiguous parameter", path, what, fix)


def _shapes(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Path to (shape, dtype name) of every leaf; leaves that are no arrays are refused, all at once."""
    named = flatten_paths(tree)[0]
    if not all(is_array(leaf) for _, leaf in named):
        problems = non_arrays(tree)
        raise LayoutError(
            f"{counted(len(problems), 'leaf of the tree is not an array', 'leaves of the tree are not arrays')} and "
            "cannot be laid out:",
            problems,
        )
    return {path: _shape_of(leaf) for path, leaf in named}


def _named_shapes(values: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """The same of values inside a step, by the names that it gives them; a name may itself have several parts."""
    return {
        join_parts(split_path(name) + split_path(path)): found
        for name, tree in values.items()
        for path, found in _shapes(tree).items()
    }


def _named_as_leaves(shapes: Shapes) -> list[Problem]:
    return [
        Problem("same path twice", path, f"a rule could not tell the value from the leaf of the {kind}", "rename it")
        for kind in ("state", "batch")
        for path in shapes["intermediate"]
        if path in shapes[kind]
    ]


def none_paths(tree: Any) -> list[str]:
    """The paths at which a tree holds `None`, which is no leaf."""
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
    """As JAX will hold it: a host's float64 as float32 unless told otherwise, and that is what has to fit."""
    is_key = jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    return str(dtype if is_key else jax.dtypes.canonicalize_dtype(dtype))
