"""The axes that rules have assigned to one leaf so far, and the alternatives where a dim is not divisible."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jax.sharding import PartitionSpec as P

from outlay.core.error_types import Problem
from outlay.core.quantities import format_bytes
from outlay.core.sizes import num_bytes
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


def indivisible(assignment: LeafAssignment, dim: int, axes: tuple[str, ...], rule: str) -> Problem:
    """Return the problem of a rule that splits a dim unevenly, with every alternative; `rule` is its text."""
    size, pieces = assignment.shape[dim], assignment.num_pieces(axes)
    over = " x ".join(f"{axis}={assignment.axis_sizes[axis]}" for axis in axes)
    what = (
        f"dim {dim} of {assignment.shape} {assignment.dtype} has size {size}, which is not divisible by {over}"
        f"{f' = {pieces}' if len(axes) > 1 else ''} ({size} = {size // pieces} x {pieces} + {size % pieces}); "
        f"asked by rule {rule}"
    )
    if assignment.is_scalar:
        ways = [_settle(assignment)]
    else:
        ways = _batch_choices(assignment, dim, axes) if assignment.kind == "batch" else _choices(assignment, dim, axes)
    return Problem("indivisible dim", assignment.path, what, "\n".join(ways))


def _batch_choices(assignment: LeafAssignment, dim: int, axes: tuple[str, ...]) -> list[str]:
    """Return the alternatives for a batch: not the model but the batch or the mesh can be changed."""
    size, pieces = assignment.shape[dim], assignment.num_pieces(axes)
    more, fewer = -(-size // pieces) * pieces, size // pieces * pieces
    if dim:
        cut = f", or cut it off at {fewer}" if fewer else ""
        return [f"pad dim {dim} of the batch to {more}{cut}", f"or {_settle(assignment)}"]
    sizes = f"{more} or {fewer} samples" if fewer else f"{more} samples or a multiple, one for each of {pieces} devices"
    return [
        f"make batches of {sizes}, all devices together (--batch {more}, where a recipe takes it)",
        *([f"or drop the {size - fewer} samples of an uneven last batch"] if fewer else []),
        f'or pad to {more} samples, with "weight" 0 in the batch for those that do not count (outlay.train_step)',
        *_fewer_devices(assignment, dim, axes),
        f"or, if dim 0 does not count samples, {_settle(assignment)}",
    ]


def _settle(assignment: LeafAssignment) -> str:
    whole = format_bytes(num_bytes(assignment.shape, assignment.dtype))
    return f'settle this leaf by a rule before: ("{assignment.path}", outlay.replicate()), {whole} a device'


def _fewer_devices(assignment: LeafAssignment, dim: int, axes: tuple[str, ...]) -> list[str]:
    """Suggest a smaller axis that divides the dim; another axis can use the other devices."""
    # Of one axis only: the other factor of two axes may be what does not divide.
    (axis, size), *others = ((axis, assignment.axis_sizes[axis]) for axis in axes)
    fits = math.gcd(assignment.shape[dim], size)
    if others or fits == 1:
        return []
    return [f"or split over fewer devices: {axis}={fits}, and {size // fits} for another axis of the mesh"]


def _choices(assignment: LeafAssignment, dim: int, axes: tuple[str, ...]) -> list[str]:
    """Return the alternatives for an indivisible dim, cheapest per device first."""
    pieces = assignment.num_pieces(axes)
    ways = [_another_dim(assignment, other, axes) for other in other_dims(assignment, dim, axes)]
    if len(axes) > 1:
        ways += [f"split it over {axis} only" for axis in axes if assignment.divides(dim, (axis,))]
    padded = math.ceil(assignment.shape[dim] / pieces) * pieces
    row = num_bytes(assignment.shape, assignment.dtype) // assignment.shape[dim]
    ways.append(
        f"pad dim {dim} to {padded} in the model (+{padded - assignment.shape[dim]}, "
        f"{format_bytes((padded - assignment.shape[dim]) * row)} in all)"
    )
    whole = num_bytes(assignment.local_shape(), assignment.dtype)
    ways.append(
        f'keep the dim whole with otherwise="replicate": {format_bytes(whole)} a device ({assignment.whole_cost(axes)})'
    )
    return [f"{'or ' if i else ''}{way}" for i, way in enumerate(ways)]


def other_dims(assignment: LeafAssignment, dim: int, axes: tuple[str, ...]) -> list[int]:
    """Return the other free dims that are divisible by these axes, largest first."""
    fitting = [
        other
        for other in range(len(assignment.shape))
        if other != dim
        and assignment.dims[other] is None
        and assignment.shape[other]  # 0 is divisible by everything, and there is nothing in it to split
        and assignment.divides(other, axes)
    ]
    return sorted(fitting, key=lambda other: (-assignment.shape[other], other))


def _another_dim(assignment: LeafAssignment, other: int, axes: tuple[str, ...]) -> str:
    dims: Dims = tuple(axes if i == other else taken or () for i, taken in enumerate(assignment.dims))
    cost = format_bytes(num_bytes(assignment.local_shape(dims), assignment.dtype))
    return f'split dim {other} (size {assignment.shape[other]}) with otherwise="another_dim": {cost} a device'
