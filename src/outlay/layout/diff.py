"""The difference of two plans: leaves added, removed, or placed elsewhere, with the bytes before and after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from outlay.core.one_line import OneLine
from outlay.core.quantities import format_bytes
from outlay.core.terminal_text import folded
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import spec_text
from outlay.render.page import Column, Line, Page, Row, Table
from outlay.render.report import Report

_COMPARED = {
    "kind": "kind",
    "shape": "shape",
    "dtype": "dtype",
    "dims": "spec",
    "local_shape": "local",
    "device_ids": "devices",
    "stored": "stored",
}
"""The fields that make a leaf different, and what they are called. Rule and reason are not among them: they can change
without moving bytes."""


@dataclass(frozen=True)
class LeafDiff(OneLine):
    """One leaf before and after; `None` if it did not exist.

    Attributes:
        path: dotted path.
        before: the leaf in the first plan.
        after: the leaf in the second plan.
    """

    path: str
    before: LeafPlan | None
    after: LeafPlan | None

    @property
    def what(self) -> str:
        """`added`, `removed`, or `changed`."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that differ, such as shape, dtype or dims; empty for a leaf that was added or removed."""
        if self.before is None or self.after is None:
            return ()
        return tuple(name for name in _COMPARED if getattr(self.before, name) != getattr(self.after, name))

    @property
    def bytes_per_device(self) -> tuple[int, int]:
        """Bytes on a device that holds the leaf, before and after."""
        before, after = (leaf.bytes_per_device if leaf else 0 for leaf in (self.before, self.after))
        return before, after

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        before, after = self.bytes_per_device
        return {
            "path": self.path,
            "what": self.what,
            "fields": {name: [_as_json(self.before, name), _as_json(self.after, name)] for name in self.fields},
            "bytes_per_device": [before, after],
        }


@dataclass(frozen=True)
class PlanDiff(Report):
    """The difference between two plans; true if there is one.

    Attributes:
        meshes: the mesh before and after.
        leaves: the leaves that differ: those of the first plan in its order, then those that were added.
        bytes_total: bytes of the state counted once, before and after.
        bytes_per_device: bytes of the state on the fullest device, before and after.
    """

    meshes: tuple[MeshInfo, MeshInfo]
    leaves: tuple[LeafDiff, ...]
    bytes_total: tuple[int, int]
    bytes_per_device: tuple[int, int]

    def __bool__(self) -> bool:
        return bool(self.leaves) or self.meshes[0] != self.meshes[1]

    @property
    def added(self) -> tuple[LeafDiff, ...]:
        """Leaves that only the second plan has."""
        return tuple(leaf for leaf in self.leaves if leaf.what == "added")

    @property
    def removed(self) -> tuple[LeafDiff, ...]:
        """Leaves that only the first plan has."""
        return tuple(leaf for leaf in self.leaves if leaf.what == "removed")

    @property
    def changed(self) -> tuple[LeafDiff, ...]:
        """Leaves of both plans whose kind, shape, dtype, dims or devices differ."""
        return tuple(leaf for leaf in self.leaves if leaf.what == "changed")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "meshes": [mesh.to_dict() for mesh in self.meshes],
            "leaves": [leaf.to_dict() for leaf in self.leaves],
            "bytes_total": list(self.bytes_total),
            "bytes_per_device": list(self.bytes_per_device),
        }

    _text_width = 220

    def _page(self) -> Page:
        if not self:
            return Page("the plans are the same", [])
        counts = f"{len(self.added)} added, {len(self.removed)} removed, {len(self.changed)} changed"
        meshes = f"{self.meshes[0]} -> {self.meshes[1]}"
        cells = [[leaf.path, leaf.what, _words(leaf), _bytes(leaf.bytes_per_device)] for leaf in self.leaves]
        rows, left_out = folded(cells, names=(0,), all_at="the diff's leaves")
        columns = [Column("path", "path"), Column(""), Column("what"), Column("a device", "number")]
        totals = f"{_bytes(self.bytes_total)} counted once, {_bytes(self.bytes_per_device)} on the fullest device"
        return Page(
            title=f"What changes in the plan: {counts}",
            headline=meshes if self.meshes[0] != self.meshes[1] else counts,
            blocks=[
                *([Line(counts)] if self.meshes[0] != self.meshes[1] else []),
                *([Table(columns, [Row(row) for row in rows])] if rows else []),
                *([Line(f"({left_out})")] if left_out else []),
                Line(f"state: {totals}"),
            ],
        )


def diff_leaves(before: Iterable[LeafPlan], after: Iterable[LeafPlan]) -> tuple[LeafDiff, ...]:
    """Return the leaves that differ between two plans: the first plan's in its order, then added ones."""
    old, new = ({leaf.path: leaf for leaf in leaves} for leaves in (before, after))
    paths = [*old, *(path for path in new if path not in old)]
    differences = [LeafDiff(path, old.get(path), new.get(path)) for path in paths]
    return tuple(leaf for leaf in differences if leaf.what != "changed" or leaf.fields)


def _as_json(leaf: LeafPlan | None, name: str) -> Any:
    value = getattr(leaf, name)
    if name == "dims":
        return [list(axes) for axes in value]
    return list(value) if isinstance(value, tuple) else value


def _words(leaf: LeafDiff) -> str:
    """Write the change of a leaf: each field that differs, before and after."""
    if leaf.before is None or leaf.after is None:
        there = leaf.before or leaf.after
        assert there is not None
        return f"{there.shape} {there.dtype} {spec_text(there.spec)}"
    return ", ".join(
        f"{_COMPARED[name]} {_written(leaf.before, name)} -> {_written(leaf.after, name)}" for name in leaf.fields
    )


def _written(leaf: LeafPlan, name: str) -> str:
    if name == "dims":
        return spec_text(leaf.spec)
    if name == "device_ids" and len(leaf.device_ids) > 8:
        return f"{len(leaf.device_ids)} of them"
    return str(getattr(leaf, name)) or "not set"


def _bytes(pair: tuple[int, int]) -> str:
    before, after = map(format_bytes, pair)
    return before if pair[0] == pair[1] else f"{before} -> {after}"
