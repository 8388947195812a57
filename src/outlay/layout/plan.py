"""A plan: a layout resolved for one tree on one mesh. Plain data that can be printed, saved and compared."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlay.core.error_types import ArgumentError
from outlay.core.quantities import counted, format_bytes
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import spec_text
from outlay.layout.rule import Kind

if TYPE_CHECKING:
    from outlay.layout.diff import PlanDiff
    from outlay.render.page import Page
from outlay.render.report import Report


@dataclass(frozen=True)
class Plan(Report):
    """Every leaf of a tree with its place on a mesh.

    Attributes:
        mesh: the mesh as plain data.
        leaves: the leaves, state first, then batch, then intermediates.
        find_notes: returns `notes`; asked once, when they are first read.
    """

    mesh: MeshInfo
    leaves: tuple[LeafPlan, ...]
    find_notes: Callable[[], tuple[str, ...]] = field(default=tuple, repr=False, compare=False)

    @functools.cached_property
    def notes(self) -> tuple[str, ...]:
        """Warnings of costs without a benefit, in words."""
        return self.find_notes()

    def __getitem__(self, path: str) -> LeafPlan:
        for leaf in self.leaves:
            if leaf.path == path:
                return leaf
        from outlay.core.suggest import did_you_mean

        raise KeyError(f"no leaf {path!r} in the plan: {did_you_mean(str(path), [leaf.path for leaf in self.leaves])}")

    def __iter__(self) -> Iterator[LeafPlan]:
        return iter(self.leaves)

    def __len__(self) -> int:
        return len(self.leaves)

    def of_kind(self, kind: Kind) -> tuple[LeafPlan, ...]:
        """Return the leaves of one kind."""
        return tuple(leaf for leaf in self.leaves if leaf.kind == kind)

    @property
    def state(self) -> tuple[LeafPlan, ...]:
        """The leaves of the state."""
        return self.of_kind("state")

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """The mesh axes over which tokens change devices on their way to experts, where the step names its tokens.

        Such an axis splits samples and, of a value of the same shape, another dim. It also splits parameters, and yet
        none are gathered over it, as FSDP would.
        """
        values = self.of_kind("intermediate")
        apart = {(leaf.shape, axis) for leaf in values for axes in leaf.dims[1:] for axis in axes}
        moved = (axis for leaf in values for axis in (leaf.dims or ((),))[0] if (leaf.shape, axis) in apart)
        samples = {axis for leaf in self.of_kind("batch") for axes in leaf.dims[:1] for axis in axes}
        return tuple(axis for axis in dict.fromkeys(moved) if axis in samples)

    @property
    def bytes_total(self) -> int:
        """Bytes of the state, every array counted once."""
        return sum(leaf.bytes_total for leaf in self.state)

    @property
    def bytes_per_device(self) -> dict[int, int]:
        """Bytes of state that each device holds in its own memory, by device id."""
        return self._held(self._stored_on(host=False))

    @property
    def host_bytes_per_device(self) -> dict[int, int]:
        """Bytes of state in host memory for each device, by device id."""
        return self._held(self._stored_on(host=True))

    def _stored_on(self, *, host: bool) -> list[LeafPlan]:
        return [leaf for leaf in self.state if (leaf.stored == "host") is host]

    def _held(self, leaves: Sequence[LeafPlan]) -> dict[int, int]:
        held = dict.fromkeys(self.mesh.device_ids, 0)
        for leaf in leaves:
            piece = leaf.bytes_per_device
            for device in leaf.device_ids:
                held[device] += piece
        return held

    @property
    def replication(self) -> float:
        """Bytes of state on all devices and hosts, divided by its bytes counted once; 1.0 means no copies."""
        return sum(self._held(self.state).values()) / self.bytes_total if self.bytes_total else 1.0

    def diff(self, other: Plan) -> PlanDiff:
        """Return what changes from this plan to another: leaves added, removed, changed, with bytes before and after.

        >>> state, mesh = {"w": jnp.ones((8, 4))}, outlay.mesh(data=8)
        >>> plan, other = (outlay.Layout([("w", spec)]).plan(state, mesh) for spec in (P("data"), P()))
        >>> bool(plan.diff(plan)), plan.diff(other).bytes_per_device
        (False, (16, 128))
        """
        if not isinstance(other, Plan):
            raise ArgumentError(
                f"a plan is compared with another plan, and this is a {type(other).__name__}"
                "\n  fix: outlay.program(..., layout=layout).plan, or layout.plan(state, mesh, batch=batch)"
            )
        from outlay.layout.diff import PlanDiff, diff_leaves

        before, after = (max(plan.bytes_per_device.values(), default=0) for plan in (self, other))
        return PlanDiff(
            meshes=(self.mesh, other.mesh),
            leaves=diff_leaves(self, other),
            bytes_total=(self.bytes_total, other.bytes_total),
            bytes_per_device=(before, after),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "mesh": self.mesh.to_dict(),
            "leaves": [leaf.to_dict(self.mesh) for leaf in self.leaves],
            "notes": list(self.notes),
            "bytes_total": self.bytes_total,
            "replication": self.replication,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """Read what `to_dict` returned.

        Raises:
            LayoutError: it is not a saved plan, or one that no layout could have made; every wrong leaf is listed.
        """
        from outlay.layout.saved_plan import read_plan

        mesh, leaves, notes = read_plan(data)
        return cls(mesh, leaves, functools.partial(tuple, notes))

    def to_json(self) -> str:
        """Return JSON text; `Plan.from_json` reads it as an equal plan."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` returned.

        Raises:
            LayoutError: the text is not a saved plan, or a damaged one; every wrong leaf is listed.
        """
        from outlay.layout.saved_plan import read_json

        return cls.from_dict(read_json(text))

    def _in_short(self) -> str:
        return f"{self.mesh}; {self._totals()}"

    _text_width = 220

    def _page(self) -> Page:
        from outlay.core.terminal_text import folded
        from outlay.render.page import Column, Line, Notes, Page, Row, Stat, Stats, Table

        columns = {
            Column("path", "path"): lambda leaf: leaf.path,
            Column("shape"): lambda leaf: str(leaf.shape),
            Column("local"): lambda leaf: str(leaf.local_shape),
            Column("dtype"): lambda leaf: leaf.dtype,
            Column("spec"): lambda leaf: spec_text(leaf.spec),
            Column("a device", "number"): lambda leaf: format_bytes(leaf.bytes_per_device),
            Column("copies", "number"): lambda leaf: str(leaf.num_copies),
            Column("stored"): lambda leaf: leaf.stored,
            Column("rule"): lambda leaf: leaf.rule,
            Column("reason", "words"): lambda leaf: leaf.reason,
        }
        if not any(leaf.stored for leaf in self.leaves):
            del columns[Column("stored")]
        cells = [[cell(leaf) for cell in columns.values()] for leaf in self.leaves]
        # Folded here and not where it is drawn: a page of 20,000 rows would be larger than what it is about.
        rows, left_out = folded(cells, names=(0, len(columns) - 1), all_at="plan.to_json(), or plan[path] for one")
        return Page(
            title="Where every array is planned to live",
            headline=str(self.mesh),
            blocks=[
                Stats(
                    [
                        Stat("On a device", format_bytes(max(self.bytes_per_device.values(), default=0)), "at most"),
                        Stat("State", format_bytes(self.bytes_total), "every array counted once"),
                        Stat("Replication", f"{self.replication:.2f}×", "1.00× means no copies"),
                        Stat("Leaves", f"{len(self.leaves):,}", str(self.mesh)),
                    ]
                ),
                Table([*columns], [Row(row) for row in rows]),
                *([Line(f"({left_out})")] if left_out else []),
                Line(self._totals()),
                Notes(self.notes),
            ],
        )

    def _totals(self) -> str:
        held = self.bytes_per_device.values()
        most, least = max(held, default=0), min(held, default=0)
        each = format_bytes(most) if most == least else f"{format_bytes(least)} to {format_bytes(most)}"
        on_host = max(self.host_bytes_per_device.values(), default=0)
        on_host = f" and {format_bytes(on_host)} on its host" if on_host else ""
        return (
            f"state: {counted(len(self.state), 'leaf', 'leaves')}, {format_bytes(self.bytes_total)} counted once, "
            f"{each} a device{on_host}, replication {self.replication:.2f}"
        )
