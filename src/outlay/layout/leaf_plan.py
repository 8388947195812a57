"""The plan of one leaf: where it lives, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

from jax.sharding import PartitionSpec as P

from outlay.core.one_line import OneLine
from outlay.core.sizes import is_count, num_bytes
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.placement import Dims, Stored, dims_spec
from outlay.layout.rule import Kind


@dataclass(frozen=True)
class LeafPlan(OneLine):
    """Where one leaf lives, and why.

    Attributes:
        path: dotted path.
        kind: `state`, `batch`, or `intermediate` (a value that the step constrains by name).
        shape: global shape.
        dtype: name of the dtype.
        dims: the mesh axes that split each dim.
        local_shape: the shape of one device's piece.
        device_ids: the devices that hold it.
        rule: the rule or rules that decided, as written; empty if none was needed.
        reason: why, in words.
        stored: where rules store it between its uses; empty if none says, which means in the device's memory.
        is_placed: False for a value inside the step for which rules say only how it is stored.
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
    stored: Stored = ""
    is_placed: bool = True

    @property
    def spec(self) -> P:
        """The `PartitionSpec`: `P()` if no dim is split, else one entry per dim."""
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
        """The number of devices that hold the same piece."""
        pieces = math.prod(
            whole // local if local else 1 for whole, local in zip(self.shape, self.local_shape, strict=True)
        )
        return len(self.device_ids) // pieces

    @property
    def is_split(self) -> bool:
        """Whether a device holds less than the whole; an axis of one device splits nothing."""
        return self.local_shape != self.shape

    def to_dict(self, mesh: MeshInfo) -> dict[str, Any]:
        """Return JSON-ready data, given the mesh of its plan."""
        return {
            "path": self.path,
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "dims": [list(axes) for axes in self.dims],
            "local_shape": list(self.local_shape),
            # Most leaves live on the whole mesh: thousands of ids for each would swell the file.
            "device_ids": "all" if self.device_ids == mesh.device_ids else list(self.device_ids),
            "bytes_total": self.bytes_total,
            "bytes_per_device": self.bytes_per_device,
            "rule": self.rule,
            "reason": self.reason,
            "stored": self.stored,
            "is_placed": self.is_placed,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], mesh: MeshInfo) -> LeafPlan:
        """Read what `to_dict` returned.

        Raises:
            ValueError: no plan has such a leaf.
            KeyError: data is missing.
        """
        leaf = cls(
            path=data["path"],
            kind=data["kind"],
            shape=tuple(data["shape"]),
            dtype=data["dtype"],
            dims=tuple(tuple(axes) for axes in data["dims"]),
            local_shape=tuple(data["local_shape"]),
            device_ids=mesh.device_ids if data["device_ids"] == "all" else tuple(data["device_ids"]),
            rule=data["rule"],
            reason=data["reason"],
            # Older plans lack the key: they were saved before leaves could be stored elsewhere than on their devices.
            stored=data.get("stored", ""),
            is_placed=data.get("is_placed", True),
        )
        if what := leaf._problem(mesh):
            raise ValueError(what)
        return leaf

    def _problem(self, mesh: MeshInfo) -> str:
        """Return what makes a saved leaf impossible, or nothing: saved plans come from anywhere."""
        texts = {"path": self.path, "dtype": self.dtype, "rule": self.rule, "reason": self.reason}
        if odd := [name for name, text in texts.items() if not isinstance(text, str)]:
            return f"{odd[0]} is {texts[odd[0]]!r}, not text"
        if self.kind not in get_args(Kind):
            return f"kind is {self.kind!r}, not one of {', '.join(get_args(Kind))}"
        if self.stored not in get_args(Stored) or not isinstance(self.is_placed, bool):
            return f"stored is {self.stored!r}, not one of {get_args(Stored)}, or is_placed is {self.is_placed!r}"
        try:
            num_bytes((), self.dtype)
        except (TypeError, KeyError):
            return f"dtype {self.dtype!r} is not known to JAX"
        if not all(is_count(size) for size in (*self.shape, *self.local_shape)):
            return f"shape {self.shape} or local shape {self.local_shape} holds something that is not a size"
        axes = [axis for one in self.dims for axis in one]
        if len(self.dims) != len(self.shape) or len(self.local_shape) != len(self.shape):
            return f"shape {self.shape}, local shape {self.local_shape} and dims {self.dims} have different lengths"
        if len(set(axes)) < len(axes) or not set(axes) <= set(mesh.axis_sizes):
            return f"dims {self.dims} name an axis twice, or one that {mesh} lacks"
        if not self.device_ids or len(set(self.device_ids)) < len(self.device_ids):
            return f"devices {self.device_ids} are empty, or hold one twice"
        if not set(self.device_ids) <= set(mesh.device_ids):
            return f"devices {self.device_ids} are not all in {mesh}"
        if self.device_ids != mesh.device_ids:  # on some devices: replicated, or split by rows
            rows = self.shape and (self.local_shape[0] * len(self.device_ids), *self.local_shape[1:])
            if axes or self.shape not in (self.local_shape, rows):
                return f"pieces of {self.local_shape} on {len(self.device_ids)} devices do not make up {self.shape}"
        else:
            pieces = [math.prod(mesh.axis_sizes[axis] for axis in one) for one in self.dims]
            whole = [local * num for local, num in zip(self.local_shape, pieces, strict=True)]
            if tuple(whole) != self.shape:
                return f"pieces of {self.local_shape}, split as {self.dims}, do not make up {self.shape}"
        return ""
