"""What the rules have claimed of one leaf so far: the first claim on a dim or an axis wins."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jax.sharding import PartitionSpec as P

from outlay.core.quantities import format_bytes
from outlay.core.sizes import num_bytes
from outlay.layout.placement import Dims, LeafView, dims_spec, spec_dims
from outlay.layout.rule import Kind
from outlay.layout.storage import Stored


@dataclass
class Claims:
    """The claims on one leaf, filled rule by rule.

    Attributes:
        path, shape, dtype: the leaf.
        axis_sizes: the mesh.
        kind: whether it belongs to the state, to the batch, or is a value inside the step.
        dims: the axes claimed for each dim so far; `None` is free.
        owners: the number of the rule that claimed each dim.
        closed_by: the rule that closed the leaf to later ones, if any.
        positions: the mesh positions that `on` chose, if any.
        stored: where rules keep it between its uses, if they say.
        deciders: the numbers of the rules that claimed something.
        reasons: why, in words, in order.
        declined: whether a policy looked at it and chose to leave it whole.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    axis_sizes: dict[str, int]
    kind: Kind = "state"
    dims: list[tuple[str, ...] | None] = field(default_factory=list)
    owners: dict[int, int] = field(default_factory=dict)
    closed_by: int | None = None
    positions: tuple[int, ...] | None = None
    stored: Stored = ""
    deciders: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    declined: bool = False

    def __post_init__(self) -> None:
        self.dims = [None] * len(self.shape)

    @property
    def is_scalar(self) -> bool:
        """Whether there is nothing to split: at most one element."""
        return math.prod(self.shape) <= 1

    @property
    def used_axes(self) -> set[str]:
        """The mesh axes that split some dim already."""
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
        """What a policy sees."""
        free_dims = tuple(i for i, axes in enumerate(self.dims) if axes is None)
        used = self.used_axes
        free_axes = {name: size for name, size in self.axis_sizes.items() if name not in used}
        return LeafView(self.path, self.shape, self.dtype, free_dims, free_axes)

    def num_pieces(self, axes: tuple[str, ...]) -> int:
        """Into how many pieces these axes cut a dim."""
        return math.prod(self.axis_sizes[axis] for axis in axes)

    def divides(self, dim: int, axes: tuple[str, ...]) -> bool:
        """Whether the dim divides by the product of the axes."""
        return self.shape[dim] % self.num_pieces(axes) == 0

    def is_free(self, dim: int, axes: tuple[str, ...]) -> bool:
        """Whether neither the dim nor any of the axes is taken."""
        return self.dims[dim] is None and not self.used_axes & set(axes)

    def wanted(self, spec: P) -> list[tuple[int, tuple[str, ...]]]:
        """The dims that a spec claims, each with its axes."""
        return [(dim, axes) for dim, axes in enumerate(spec_dims(spec, len(self.shape))) if axes]

    def local_shape(self, dims: Dims | None = None) -> tuple[int, ...]:
        """The shape of one device's piece, under the claims so far or under other dims."""
        split = dims if dims is not None else self.settled()
        return tuple(size // self.num_pieces(axes) for size, axes in zip(self.shape, split, strict=True))

    def settled(self) -> Dims:
        """The claims as final dims; free dims are whole."""
        return tuple(axes or () for axes in self.dims)

    def spec(self) -> P:
        """The claims as a spec."""
        return dims_spec(self.settled())

    def whole_axes(self, axes: tuple[str, ...]) -> str:
        """That axes of one device split nothing, in words to follow a reason; empty where they do split."""
        return f": whole, for {'+'.join(axes)} has one device" if self.num_pieces(axes) == 1 else ""

    def whole_cost(self, dim: int, axes: tuple[str, ...]) -> str:
        """What it costs a device to keep a dim whole that these axes would have split, in words."""
        whole = num_bytes(self.local_shape(), self.dtype)
        split = whole / self.num_pieces(axes)
        return f"+{format_bytes(whole - split)} a device"
