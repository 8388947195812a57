"""The alternatives where a rule splits a dim that its axes do not divide."""

from __future__ import annotations

import math

from outlay.core.array_leaves import num_bytes
from outlay.core.error_types import Problem
from outlay.core.quantities import format_bytes
from outlay.layout.leaf_plan import LeafAssignment
from outlay.layout.placement import Dims


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
        if dim == 0 and assignment.path.startswith("expert_tokens."):
            whole = "give outlay.experts all samples at once, (B, T, D), not one of them inside of jax.vmap"
            ways = [
                f"{whole}; of tokens (N, D), groups={pieces} or a multiple",
                *(f"or {way.removeprefix('or ')}" for way in ways),
            ]
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
    ways = [_another_dim(assignment, other, axes) for other in assignment.other_dims(dim, axes)]
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


def _another_dim(assignment: LeafAssignment, other: int, axes: tuple[str, ...]) -> str:
    dims: Dims = tuple(axes if i == other else taken or () for i, taken in enumerate(assignment.dims))
    cost = format_bytes(num_bytes(assignment.local_shape(dims), assignment.dtype))
    return f'split dim {other} (size {assignment.shape[other]}) with otherwise="another_dim": {cost} a device'
