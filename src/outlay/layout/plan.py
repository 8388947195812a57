"""A plan: a layout resolved for one tree on one mesh. Plain data; it can be printed, saved, and compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec as P

from outlay.core.errors import LayoutError
from outlay.core.sizes import format_bytes, num_bytes
from outlay.core.suggest import did_you_mean
from outlay.core.table import table, to_text
from outlay.layout.diff import PlanDiff, diff_plans
from outlay.layout.placement import Dims, dims_spec, spec_text
from outlay.layout.rule import Kind
from outlay.meshes.info import MeshInfo


@dataclass(frozen=True)
class LeafPlan:
    """Where one leaf lives, and why.

    Attributes:
        path: dotted path.
        kind: `state`, `batch`, or `intermediate` (a value that the step constrains by name).
        shape: global shape.
        dtype: name of the dtype.
        dims: the mesh axes that split each dim.
        local_shape: the shape of one device's piece.
        device_ids: the devices that hold it.
        rule: the rule or rules that decided, as written; empty where none was needed.
        reason: why, in words.
    """

    path: str
    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    dims: Dims
    local_shape: tuple[int, ...]
    device_ids: tuple[int, ...]
    rule: str
    reason: str

    @property
    def spec(self) -> P:
        """The `PartitionSpec`: `P()` when no dim is split, else one entry a dim."""
        return dims_spec(self.dims)

    @property
    def bytes_total(self) -> int:
        """Bytes of the whole array, counted once."""
        return num_bytes(self.shape, self.dtype)

    @property
    def bytes_per_device(self) -> int:
        """Bytes of one device's piece."""
        return num_bytes(self.local_shape, self.dtype)

    @property
    def num_copies(self) -> int:
        """How many devices hold the same piece."""
        pieces = math.prod(
            whole // local if local else 1 for whole, local in zip(self.shape, self.local_shape, strict=True)
        )
        return len(self.device_ids) // pieces

    @property
    def is_split(self) -> bool:
        """Whether a device holds less than the whole; splitting over an axis of one device is not splitting."""
        return self.local_shape != self.shape


@dataclass(frozen=True)
class Plan:
    """Every leaf of a tree with its place on a mesh.

    Attributes:
        mesh: the mesh as plain data.
        leaves: the leaves, state first, then batch, then intermediates.
        notes: what the plan costs without bringing anything, in words.
    """

    mesh: MeshInfo
    leaves: tuple[LeafPlan, ...]
    notes: tuple[str, ...] = ()

    def __getitem__(self, path: str) -> LeafPlan:
        for leaf in self.leaves:
            if leaf.path == path:
                return leaf
        raise KeyError(f"no leaf {path!r} in the plan: {did_you_mean(path, [leaf.path for leaf in self.leaves])}")

    def __iter__(self) -> Iterator[LeafPlan]:
        return iter(self.leaves)

    def __len__(self) -> int:
        return len(self.leaves)

    def of_kind(self, kind: Kind) -> tuple[LeafPlan, ...]:
        """The leaves of one kind."""
        return tuple(leaf for leaf in self.leaves if leaf.kind == kind)

    @property
    def state(self) -> tuple[LeafPlan, ...]:
        """The leaves of the state."""
        return self.of_kind("state")

    @property
    def bytes_total(self) -> int:
        """Bytes of the state, every array counted once."""
        return sum(leaf.bytes_total for leaf in self.state)

    @property
    def bytes_per_device(self) -> dict[int, int]:
        """Bytes of state that each device holds, by device id."""
        held = dict.fromkeys(self.mesh.device_ids, 0)
        for leaf in self.state:
            for device in leaf.device_ids:
                held[device] += leaf.bytes_per_device
        return held

    @property
    def replication(self) -> float:
        """Bytes of state on all devices over bytes of state counted once; 1.0 holds no copy."""
        return sum(self.bytes_per_device.values()) / self.bytes_total if self.bytes_total else 1.0

    def diff(self, other: Plan) -> PlanDiff:
        """What changes from this plan to another: leaves added, removed, changed, with bytes before and after.

        >>> state, mesh = {"w": jnp.ones((8, 4))}, outlay.mesh(data=8)
        >>> plan, other = (outlay.Layout([("w", spec)]).plan(state, mesh) for spec in (P("data"), P()))
        >>> bool(plan.diff(plan)), plan.diff(other).bytes_per_device
        (False, (16, 128))
        """
        return diff_plans(self, other)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "mesh": self.mesh.to_dict(),
            "leaves": [_leaf_to_dict(leaf, self.mesh) for leaf in self.leaves],
            "notes": list(self.notes),
            "bytes_total": self.bytes_total,
            "replication": self.replication,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """Read back what `to_dict` wrote."""
        mesh = MeshInfo.from_dict(data["mesh"])
        return cls(mesh, tuple(_leaf_from_dict(leaf, mesh) for leaf in data["leaves"]), tuple(data["notes"]))

    def to_json(self) -> str:
        """As JSON text; `Plan.from_json` reads it back to an equal plan."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read back what `to_json` wrote.

        Raises:
            LayoutError: the text is no saved plan.
        """
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            cause = f"{type(error).__name__}: {error}"
            raise LayoutError(f"this is not a saved plan ({cause}); write one with plan.to_json()") from error

    def __str__(self) -> str:
        columns = ["path", "shape", "local", "dtype", "spec", "a device", "copies", "rule", "reason"]
        rows = [
            [
                leaf.path,
                _shape(leaf.shape),
                _shape(leaf.local_shape),
                leaf.dtype,
                spec_text(leaf.spec),
                format_bytes(leaf.bytes_per_device),
                str(leaf.num_copies),
                leaf.rule,
                leaf.reason,
            ]
            for leaf in self.leaves
        ]
        parts = [str(self.mesh), to_text(table(columns, rows, right=("a device", "copies")), width=220)]
        return "\n".join([*parts, self._totals(), *(f"note: {note}" for note in self.notes)])

    def _totals(self) -> str:
        held = self.bytes_per_device.values()
        most, least = max(held, default=0), min(held, default=0)
        each = format_bytes(most) if most == least else f"{format_bytes(least)} to {format_bytes(most)}"
        return (
            f"state: {len(self.state)} leaves, {format_bytes(self.bytes_total)} counted once, {each} a device, "
            f"replication {self.replication:.2f}"
        )


def _shape(shape: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def _leaf_to_dict(leaf: LeafPlan, mesh: MeshInfo) -> dict[str, Any]:
    return {
        "path": leaf.path,
        "kind": leaf.kind,
        "shape": list(leaf.shape),
        "dtype": leaf.dtype,
        "dims": [list(axes) for axes in leaf.dims],
        "local_shape": list(leaf.local_shape),
        # Most leaves live on the whole mesh; writing thousands of ids for each would drown the file.
        "device_ids": "all" if leaf.device_ids == mesh.device_ids else list(leaf.device_ids),
        "bytes_total": leaf.bytes_total,
        "bytes_per_device": leaf.bytes_per_device,
        "rule": leaf.rule,
        "reason": leaf.reason,
    }


def _leaf_from_dict(data: dict[str, Any], mesh: MeshInfo) -> LeafPlan:
    return LeafPlan(
        path=data["path"],
        kind=data["kind"],
        shape=tuple(data["shape"]),
        dtype=data["dtype"],
        dims=tuple(tuple(axes) for axes in data["dims"]),
        local_shape=tuple(data["local_shape"]),
        device_ids=mesh.device_ids if data["device_ids"] == "all" else tuple(data["device_ids"]),
        rule=data["rule"],
        reason=data["reason"],
    )
