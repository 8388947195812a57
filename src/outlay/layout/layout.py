"""A layout: ordered rules, composed with `+`, resolved to a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from outlay.devices.mesh_info import MeshInfo
from outlay.layout.plan import Plan
from outlay.layout.resolve import resolve
from outlay.layout.rule import Rule

MAX_WHOLE_BYTES = 2**26
"""Bytes, of one leaf or of several together: from here on it is an error to leave them whole while others of their kind
are split, unless `replicate()` says that it is meant."""


class Layout:
    """Ordered rules that say where every leaf lives.

    The first rule to claim a dim or a mesh axis of a leaf wins; later rules fill what is free. State under `opt_state`
    or `optimizer` follows the parameter whose path and shape it repeats, unless a rule that begins with that name says
    otherwise.

    Args:
        rules: rules or `(pattern, placement)` pairs.

    Example:
        >>> layout = outlay.Layout([("params.**.kernel", P(None, "model"))]) + outlay.data_parallel()
        >>> print(layout)
        1. params.**.kernel  P(None, 'model')
        2. batch.**          first dim over 'data'
        3. **                P() (optional)

    Raises:
        LayoutError: an item is not a rule, or a rule is malformed.
    """

    def __init__(self, rules: Iterable[Any] = ()) -> None:
        items = rules if isinstance(rules, Iterable) else [rules]
        self._rules: tuple[Rule, ...] = tuple(Rule.of(item) for item in items)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, in order. A layout never changes; `layout + rules` makes a new one."""
        return self._rules

    @classmethod
    def of(cls, layout: Any) -> Layout:
        """Make a layout from a layout, a list of rules, or one rule or placement."""
        if isinstance(layout, Layout):
            return layout
        return cls(layout if isinstance(layout, list) else [layout])

    def __add__(self, other: Any) -> Layout:
        return Layout([*self.rules, *Layout.of(other).rules])

    def __radd__(self, other: Any) -> Layout:
        return Layout.of(other) + self

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.rules == other.rules

    def __hash__(self) -> int:
        return hash(self.rules)

    def __repr__(self) -> str:
        return f"Layout({list(self.rules)!r})"

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
            max_whole_bytes: it is an error if one leaf, or several together, of at least so many bytes are left whole
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
        return resolve(self.rules, state, MeshInfo.of(mesh), batch, intermediates, max_whole_bytes)
