"""Policies behind the strategies: pure functions of a leaf that choose a dim to split and give the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec as P

from outlay.core.array_leaves import num_bytes
from outlay.core.paths import matches
from outlay.core.quantities import format_bytes
from outlay.layout.placement import CannotPlace, Choice, LeafView


@dataclass(frozen=True)
class _OverAxes:
    """A policy that splits a dim over one mesh axis or several, or none.

    Attributes:
        axis: the mesh axis, or several together, outermost first.
    """

    axis: str | tuple[str, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes it uses."""
        return (self.axis,) if isinstance(self.axis, str) else self.axis

    @property
    def _named_axes(self) -> str:
        return " and ".join(map(repr, self.axes))


@dataclass(frozen=True)
class LargestDim(_OverAxes):
    """Split the largest divisible free dim; leaves with fewer than `min_size` elements stay whole.

    Attributes:
        axis: the mesh axis, or several together, outermost first.
        min_size: the number of elements below which a leaf is not worth splitting.
    """

    min_size: int

    def __call__(self, leaf: LeafView) -> Choice:
        """Choose for one leaf."""
        elements = math.prod(leaf.shape)
        if elements < self.min_size:
            return Choice(P(), f"{elements} elements < min_size {self.min_size}: not worth splitting")
        if not set(self.axes) <= set(leaf.free_axes) or not leaf.free_dims:
            return Choice(P(), f"no free dim or axis left for {self._named_axes}", blocked=True)
        size = math.prod(leaf.free_axes[axis] for axis in self.axes)
        over = " x ".join(f"{axis}={leaf.free_axes[axis]}" for axis in self.axes)
        fitting = [dim for dim in leaf.free_dims if leaf.shape[dim] and leaf.shape[dim] % size == 0]
        if fitting:
            dim = max(fitting, key=lambda d: (leaf.shape[d], -d))  # of equal ones the first
            return Choice(_split(dim, self.axis), f"dim {dim} is the largest free dim divisible by {over}")
        if len(leaf.free_dims) < len(leaf.shape):
            sizes = [leaf.shape[dim] for dim in leaf.free_dims]
            return Choice(P(), f"the free dims, of size {sizes}, are not divisible by {over}")
        pads = " or ".join(f"dim {d} to {-(-n // size) * size}" for d, n in enumerate(leaf.shape))
        raise CannotPlace(f"no dim of {leaf.shape} is divisible by {over}", f"pad {pads} in the model")

    def __str__(self) -> str:
        return f"largest dim over {self._named_axes} (min_size {self.min_size})"


@dataclass(frozen=True)
class OneDim(_OverAxes):
    """Split one given dim, counted from the end when negative; leaves without that dim stay whole.

    Attributes:
        axis: the mesh axis, or several together, outermost first.
        dim: the dim.
        min_dims: leaves with fewer dims stay whole.
    """

    dim: int
    min_dims: int = 1

    def __call__(self, leaf: LeafView) -> Choice:
        """Choose for one leaf."""
        rank = len(leaf.shape)
        dim = self.dim + rank if self.dim < 0 else self.dim
        if rank < self.min_dims or not 0 <= dim < rank:
            return Choice(P(), f"{rank} dims: nothing to split")
        if not set(self.axes) <= set(leaf.free_axes) or dim not in leaf.free_dims:
            return Choice(P(), f"dim {dim} or axis {self._named_axes} is taken", blocked=True)
        return Choice(P(*[None] * dim, self.axis), f"dim {dim} over {self._named_axes}")

    def __str__(self) -> str:
        which = {0: "first dim", -1: "last dim"}.get(self.dim, f"dim {self.dim}")
        return f"{which} over {self._named_axes}"


@dataclass(frozen=True)
class SplitRows:
    """Split the rows of the parts of a graph; everything else is replicated.

    Attributes:
        axis: the mesh axis.
        rows: patterns of the leaves with rows, each with the number of rows before padding. Only a graph knows them,
            and None means that it has not been asked.
    """

    axis: str
    rows: tuple[tuple[str, int], ...] | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes it uses."""
        return (self.axis,)

    def __call__(self, leaf: LeafView) -> Choice:
        """Choose for one leaf."""
        if self.rows is None:
            raise CannotPlace(
                "only a graph knows which leaves have rows to split",
                'outlay.program(outlay.graph.GraphLoop(graph), init, inputs, layout=..., mesh=mesh, mode="manual")',
            )
        num = next((num for pattern, num in self.rows if matches(pattern, leaf.path)), None)
        if num is None:
            return Choice(P(), "it has no rows to split, or all are read: replicated")
        if self.axis not in leaf.free_axes or 0 not in leaf.free_dims:
            return Choice(P(), f"dim 0 or axis {self.axis!r} is taken", blocked=True)
        size, padded = leaf.free_axes[self.axis], leaf.shape[0]
        reason = f"{padded // size} rows a device"
        if padded > num:
            more = num_bytes(leaf.shape, leaf.dtype) // padded * (padded - num)
            reason += f"; {num} rows padded to {padded}, +{format_bytes(more)} in all"
        return Choice(_split(0, self.axis), reason)

    def __str__(self) -> str:
        return f"by rows over {self.axis!r}"


def fitting_spec(shape: Sequence[int], axes: Sequence[tuple[str, int]]) -> P:
    """Return the spec that splits one dim over one axis into the smallest pieces; `P()` if nothing is divisible.

    >>> fitting_spec((10, 16), [("data", 4), ("model", 2)]), fitting_spec((7,), [("data", 4)])
    (P(None, 'data'), P())
    """
    for axis, size in sorted(axes, key=lambda item: -item[1]):
        fitting = [dim for dim, n in enumerate(shape) if n and size > 1 and n % size == 0]
        if fitting:
            return _split(max(fitting, key=lambda dim: shape[dim]), axis)
    return P()


def _split(dim: int, axis: str | tuple[str, ...]) -> P:
    return P(*[None] * dim, axis)
