"""One leaf: what rules have claimed of it so far, and the plan that comes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import PartitionSpec as P

from outlay.core.array_leaves import num_bytes
from outlay.core.error_types import Problem
from outlay.core.one_line import OneLine
from outlay.core.quantities import format_bytes
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.placement import Dims, LeafView, Stored, dims_spec, spec_dims
from outlay.layout.rule import Kind


@dataclass
class LeafAssignment:
    """What rules have claimed of one leaf so far: the first claim on a dim or on an axis wins.

    Attributes:
        path, shape, dtype: the leaf.
        axis_sizes: the mesh.
        kind: whether it belongs to the state or the batch, or is a value inside the step.
        dims: the axes claimed for each dim so far; `None` is free.
        dim_rules: the number of the rule that claimed each dim.
        closed_by: the rule that closed the leaf to later ones, if any.
        positions: the mesh positions that `on` selects, if any.
        stored: where rules store it between its uses, if they say.
        deciding_rules: the numbers of the rules that claimed something.
        reasons: why, in words, in order.
        problems: what does not fit.
        declined: whether a policy looked at the leaf and chose to leave it whole.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    axis_sizes: dict[str, int]
    kind: Kind = "state"
    dims: list[tuple[str, ...] | None] = field(default_factory=list)
    dim_rules: dict[int, int] = field(default_factory=dict)
    closed_by: int | None = None
    positions: tuple[int, ...] | None = None
    stored: Stored = ""
    deciding_rules: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    declined: bool = False

    def __post_init__(self) -> None:
        self.dims = [None] * len(self.shape)

    @property
    def is_scalar(self) -> bool:
        """Whether there is nothing to split: at most one element."""
        return math.prod(self.shape) <= 1

    @property
    def used_axes(self) -> set[str]:
        """The mesh axes that already split some dim."""
        return {axis for axes in self.dims if axes for axis in axes}

    @property
    def is_split(self) -> bool:
        """Whether any dim is claimed."""
        return any(self.dims)

    @property
    def is_whole(self) -> bool:
        """Whether a device gets the whole leaf."""
        return self.local_shape() == self.shape

    def view(self) -> LeafView:
        """Return what a policy may see."""
        free_dims = tuple(i for i, axes in enumerate(self.dims) if axes is None)
        used = self.used_axes
        free_axes = {name: size for name, size in self.axis_sizes.items() if name not in used}
        return LeafView(self.path, self.shape, self.dtype, free_dims, free_axes)

    def num_pieces(self, axes: tuple[str, ...]) -> int:
        """Return the number of pieces into which these axes cut a dim."""
        return math.prod(self.axis_sizes[axis] for axis in axes)

    def divides(self, dim: int, axes: tuple[str, ...]) -> bool:
        """Return whether a dim is divisible by the product of the axes."""
        return self.shape[dim] % self.num_pieces(axes) == 0

    def is_free(self, dim: int, axes: tuple[str, ...]) -> bool:
        """Return whether neither the dim nor any of the axes is taken."""
        return self.dims[dim] is None and not self.used_axes & set(axes)

    def claim(self, dim: int, axes: tuple[str, ...], number: int | None = None) -> bool:
        """Assign axes to a dim if all of them are free and the dim is divisible; return whether it was done."""
        if self.closed_by is not None or not self.is_free(dim, axes) or not self.divides(dim, axes):
            return False
        self.dims[dim] = axes
        if number is not None:
            self.dim_rules[dim] = number
        return True

    def close(self, number: int, reason: str) -> None:
        """Close the leaf to later rules."""
        self.closed_by = number
        self.deciding_rules.append(number)
        self.reasons.append(reason)

    def split_dims(self, spec: P) -> list[tuple[int, tuple[str, ...]]]:
        """Return the dims that a spec splits, each with its axes."""
        return [(dim, axes) for dim, axes in enumerate(spec_dims(spec, len(self.shape))) if axes]

    def other_dims(self, dim: int, axes: tuple[str, ...]) -> list[int]:
        """Return the other free dims that are divisible by these axes, largest first."""
        fitting = [
            other
            for other in range(len(self.shape))
            if other != dim
            and self.dims[other] is None
            and self.shape[other]  # 0 is divisible by everything, and there is nothing in it to split
            and self.divides(other, axes)
        ]
        return sorted(fitting, key=lambda other: (-self.shape[other], other))

    def local_shape(self, dims: Dims | None = None) -> tuple[int, ...]:
        """Return the shape of one device's piece, with the axes assigned so far or with others."""
        split = dims if dims is not None else self.final_dims()
        return tuple(size // self.num_pieces(axes) for size, axes in zip(self.shape, split, strict=True))

    def final_dims(self) -> Dims:
        """Return the axes of every dim; dims that no rule claimed are unsplit."""
        return tuple(axes or () for axes in self.dims)

    def spec(self) -> P:
        """Return the axes of every dim as a spec."""
        return dims_spec(self.final_dims())

    def one_device_text(self, axes: tuple[str, ...]) -> str:
        """End a reason: axes of size one split nothing; empty for axes that do split."""
        return f": whole, because {'+'.join(axes)} has one device" if self.num_pieces(axes) == 1 else ""

    def whole_cost(self, axes: tuple[str, ...]) -> str:
        """Return what it costs a device to leave a dim whole that these axes would split, in words."""
        whole = num_bytes(self.local_shape(), self.dtype)
        split = whole / self.num_pieces(axes)
        return f"+{format_bytes(whole - split)} a device"


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
