"""A layout: ordered rules, composed with `+`, resolved to a plan that is checked."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from outlay.core.array_leaves import arrays_only, is_array, non_arrays, read_annotations, split_objects
from outlay.core.error_types import ArgumentError, LayoutError, Problem
from outlay.core.flat_nodes import flat_nodes, has_classes
from outlay.core.paths import flatten_paths, split_path, under
from outlay.core.public_names import called_as
from outlay.core.quantities import counted
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.check_leaves import check_leaves, misplaced_copies
from outlay.layout.check_rules import GRADIENTS, OUTPUTS, TreeFacts, check_rules, unknown_axes, unknown_positions
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import On, is_of_products
from outlay.layout.plan import Plan
from outlay.layout.policies import SplitRows
from outlay.layout.resolve import Resolution, Shapes
from outlay.layout.rule import Rule
from outlay.render.report import Report

if TYPE_CHECKING:
    from outlay.render.page import Page

_FEW = 4
"""Rules that a layout's `repr` names."""

MAX_WHOLE_BYTES = 2**26
"""Bytes, of one leaf or of several together: from here on it is an error to leave them whole while others of their kind
are split, unless `replicate()` says that it is meant."""


class Layout(Report):
    """Ordered rules that say where every leaf lives.

    The first rule to claim a dim or a mesh axis of a leaf wins; later rules fill what is free. State under `opt_state`
    or `optimizer` follows the parameter whose path and shape it repeats, unless a rule that begins with that name says
    otherwise.

    Args:
        rules: rules or `(pattern, placement)` pairs, or a dictionary of patterns and placements, in its order.

    Example:
        >>> layout = outlay.Layout([("params.**.kernel", P(None, "model"))]) + outlay.data_parallel()
        >>> print(layout)
        1. params.**.kernel  P(None, 'model')
        2. batch.**          first dim over 'data'
        3. **                P() (optional)

    Raises:
        LayoutError: an item is not a rule, or a rule is malformed.
    """

    @called_as('outlay.Layout([("params.**.kernel", P(None, "model"))])')
    def __init__(self, rules: Iterable[Any] = ()) -> None:
        if isinstance(rules, Mapping):
            rules = list(rules.items())
        one = isinstance(rules, str) or _is_pair(rules) or not isinstance(rules, Iterable)
        items = [rules] if one else rules  # of which `Rule.of` says what is wrong
        self._rules: tuple[Rule, ...] = tuple(self._rule(item) for item in items)

    @staticmethod
    def _rule(item: Any) -> Rule:
        if isinstance(item, Layout):
            fix = "add layouts, the first rules first: outlay.fsdp() + outlay.data_parallel()"
            raise LayoutError("a layout is made of rules:", [Problem("not a rule", repr(item), "a Layout", fix)])
        return Rule.of(item)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, in order. A layout never changes; `layout + rules` makes a new one."""
        return self._rules

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The mesh axes over which rules split the rows of a graph's parts."""
        return tuple(rule.placement.axis for rule in self if isinstance(rule.placement, SplitRows))

    @property
    def stage_axes(self) -> tuple[str, ...]:
        """The mesh axes whose devices are the stages of pipelines."""
        # By attribute: a layout without pipelines does not import them.
        return tuple(axis for rule in self if (axis := getattr(rule.placement, "stage_axis", "")))

    @property
    def context_axes(self) -> tuple[str, ...]:
        """The mesh axes over which rules split the tokens of attention."""
        return tuple(axis for rule in self if (axis := getattr(rule.placement, "context_axis", "")))

    @property
    def multiplies_in_fp8(self) -> bool:
        """Whether a rule has parameters multiplied in FP8."""
        return any(is_of_products(rule.placement) for rule in self)

    @property
    def keeps_scales(self) -> bool:
        """Whether a rule has products in FP8 scaled by what they were in earlier steps."""
        return any(getattr(rule.placement, "scaling", "") == "delayed" for rule in self)

    @property
    def names_devices(self) -> bool:
        """Whether a rule puts leaves on devices of their own."""
        return any(isinstance(rule.placement, On) for rule in self)

    @classmethod
    def of(cls, layout: Any) -> Layout:
        """Make a layout from a layout, a list or dictionary of rules, or one rule or placement."""
        if isinstance(layout, Layout):
            return layout
        return cls(layout if isinstance(layout, list | Mapping) else [layout])

    def __add__(self, other: Any) -> Layout:
        return Layout([*self.rules, *Layout.of(other).rules])

    def __radd__(self, other: Any) -> Layout:
        return Layout.of(other) + self

    def __or__(self, other: Any) -> NoReturn:
        raise ArgumentError("layouts are joined by +: the rules of the first come first\n  fix: layout + layout")

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.rules == other.rules

    def __hash__(self) -> int:
        return hash(self.rules)

    def _in_short(self) -> str:
        first = ", ".join(rule.pattern for rule in self.rules[:_FEW])
        rest = f" and {len(self) - _FEW} more" if len(self) > _FEW else ""
        return f"{counted(len(self), 'rule')}: {first}{rest}" if self.rules else "no rules"

    def _page(self) -> Page:
        from outlay.render.page import Column, Page, Row, Section, Table

        rows = [Row([str(number), *str(rule).split("  ", 1)]) for number, rule in enumerate(self.rules, 1)]
        columns = [Column("rule", "number"), Column("pattern", "path"), Column("placement", "code")]
        return Page(f"a layout of {counted(len(self), 'rule')}", [Section("rules", [Table(columns, rows)])])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: the rules as text; `outlay.layout.write_layout` writes a file that can be read."""
        return {"rules": [str(rule) for rule in self.rules]}

    def __str__(self) -> str:
        width = max((len(rule.pattern) for rule in self.rules), default=0)
        lines = []
        for number, rule in enumerate(self.rules, 1):
            pattern, _, rest = str(rule).partition("  ")
            lines.append(f"{number}. {pattern:<{width}}  {rest}")
        return "\n".join(lines)

    def plan(
        self,
        state: Any,
        mesh: Mesh | AbstractMesh | MeshInfo,
        *,
        batch: Any = None,
        intermediates: Any = None,
        max_whole_bytes: int = MAX_WHOLE_BYTES,
    ) -> Plan:
        """Resolve the rules for one tree on one mesh. Pure: shapes in, plain data out.

        Args:
            state: tree of arrays or `jax.ShapeDtypeStruct`; only shapes and dtypes are read.
            mesh: a JAX mesh, abstract or not, or a `MeshInfo`.
            batch: tree of the step's input, whose leaves are named `batch.…`; `None` leaves it out, and then rules for
                it are not checked.
            intermediates: values that the step constrains by name, as a dictionary from name to tree.
            max_whole_bytes: it is an error if one leaf, or several together, of at least this many bytes are left whole
                while others of their kind are split.

        Raises:
            LayoutError: with every offender: a rule that matches nothing or is shadowed, a leaf that no rule covers, an
                indivisible dim, an axis that the mesh lacks, copies of split leaves or many bytes left whole, stacked
                layers split by a rule for one layer.

        Example:
            >>> shapes = {"params": {"w": jax.ShapeDtypeStruct((8, 16), "float32")}}
            >>> plan = outlay.Layout([("params.w", P("data", "model"))]).plan(shapes, outlay.mesh(data=4, model=2))
            >>> plan["params.w"].local_shape, plan["params.w"].bytes_per_device
            ((2, 8), 64)
        """
        return _checked_plan(self.rules, state, MeshInfo.of(mesh), batch, intermediates, max_whole_bytes)


def sample_axes(layout: Layout, batch: Any, mesh: Mesh | MeshInfo) -> tuple[str, ...]:
    """Return the mesh axes that split the first dim of each array of a batch, before there is a plan.

    Returns:
        The axes; none if arrays differ in them, or if the layout does not fit, which its plan will say.
    """
    info = MeshInfo.of(mesh)
    if unknown_axes(layout.rules, info):
        return ()
    shapes: Shapes = {"state": {}, "batch": _shapes({"batch": flat_nodes(batch)}), "intermediate": {}}
    split = {leaf.dims[0] for leaf in Resolution(layout.rules, info, shapes).leaf_plans() if leaf.dims}
    return split.pop() if len(split) == 1 else ()


def _is_pair(rules: Any) -> bool:
    """Return whether this is one rule, and not several."""
    return isinstance(rules, tuple) and len(rules) == 2 and isinstance(rules[0], str)


def _checked_plan(
    rules: Sequence[Rule], state: Any, mesh: MeshInfo, batch: Any, intermediates: Any, max_whole_bytes: int
) -> Plan:
    """Make the plan of these rules for these trees; see `Layout.plan`."""
    state, batch = arrays_only(state), flat_nodes(batch)
    problems = unknown_axes(rules, mesh)
    if problems:  # every later check would only report the same axes again
        raise LayoutError(f"the layout names {counted(len(problems), 'axis', 'axes')} that {mesh} lacks:", problems)
    # By attribute: a layout without such policies does not import them.
    asked = [(getattr(rule.placement, "problem_on", None), rule.named(number)) for number, rule in enumerate(rules)]
    if problems := [problem for ask, name in asked if ask is not None and (problem := ask(mesh, name))]:
        raise LayoutError(f"the layout keeps inside a host what crosses hosts on {mesh}:", problems)
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
    tree = TreeFacts(leaves, names, not_given, _none_paths(state) + _none_paths({"batch": batch}))
    copies = misplaced_copies(leaves, resolution)
    problems = [
        *resolution.problems,
        *check_leaves(leaves, resolution, max_whole_bytes, copies),
        *(_stack_problems(leaves, resolution) if resolution.stacks else ()),
        *check_rules(resolution, tree),
    ]
    if problems:
        raise LayoutError(f"the layout does not fit this tree on {mesh}: {counted(len(problems), 'problem')}", problems)
    # An intermediate value that no rule mentions is left to the compiler, so the plan has nothing to say about it.
    placed = tuple(leaf for leaf in leaves if leaf.kind != "intermediate" or leaf.is_placed or leaf.stored)
    annotations = read_annotations(state) if has_classes(state) else {}
    notes = functools.partial(_notes, placed, resolution, max_whole_bytes, copies, annotations)
    return Plan(mesh, placed, notes)


def _notes(placed: Sequence[LeafPlan], resolution: Resolution, *on_rules: Any) -> tuple[str, ...]:
    from outlay.layout.plan_notes import notes_on_mesh, notes_on_rules  # most plans are never read

    return (*notes_on_mesh(resolution.mesh, placed), *notes_on_rules(placed, resolution, *on_rules))


def _stack_problems(leaves: Sequence[LeafPlan], resolution: Resolution) -> Sequence[Problem]:
    from outlay.layout.check_stacks import check_stacks

    return check_stacks(leaves, resolution)


def _shapes(tree: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype name of every leaf, by path; raise if leaves are not arrays, listing all of them."""
    named = flatten_paths(split_objects(tree)[1])[0]
    if not all(is_array(leaf) for _, leaf in named):
        problems = non_arrays(tree)
        count = counted(len(problems), "leaf of the tree is not an array", "leaves of the tree are not arrays")
        raise LayoutError(f"{count} and cannot be laid out:", problems)
    return {path: _shape_of(leaf) for path, leaf in named}


def _named_shapes(values: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shapes of named intermediates by path; a name may have several parts."""
    return {
        under(name, path): shape_and_dtype
        for name, tree in values.items()
        for path, shape_and_dtype in _shapes(tree).items()
    }


def _named_as_leaves(shapes: Shapes) -> list[Problem]:
    return [
        Problem("same path twice", path, f"the named value and a leaf of the {kind} have the same path", "rename it")
        for kind in ("state", "batch")
        for path in shapes["intermediate"]
        if path in shapes[kind]
    ]


def _none_paths(tree: Any) -> list[str]:
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
