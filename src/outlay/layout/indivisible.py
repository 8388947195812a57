"""A dim that does not divide: the choices there are, each with its cost in bytes."""

from __future__ import annotations

import math

from outlay.core.errors import Problem
from outlay.core.sizes import format_bytes, num_bytes
from outlay.layout.claims import Claims
from outlay.layout.placement import Dims


def indivisible(claims: Claims, dim: int, axes: tuple[str, ...], rule: str) -> Problem:
    """The problem of a rule that splits a dim unevenly, with every way out."""
    size, pieces = claims.shape[dim], claims.num_pieces(axes)
    over = " x ".join(f"{axis}={claims.axis_sizes[axis]}" for axis in axes)
    what = (
        f"dim {dim} of {claims.shape} {claims.dtype} has size {size}, which does not divide by {over}"
        f"{f' = {pieces}' if len(axes) > 1 else ''} ({size} = {size // pieces} x {pieces} + {size % pieces}); "
        f"asked by rule {rule}"
    )
    if claims.is_scalar:
        ways = [_settle(claims)]
    else:
        ways = samples(claims, dim, axes) if claims.kind == "batch" else choices(claims, dim, axes)
    return Problem("indivisible dim", claims.path, what, "\n".join(ways))


def samples(claims: Claims, dim: int, axes: tuple[str, ...]) -> list[str]:
    """The ways out for a batch: no model can be changed to make it divide, but the batch and the mesh can."""
    size, pieces = claims.shape[dim], claims.num_pieces(axes)
    more, fewer = -(-size // pieces) * pieces, size // pieces * pieces
    if dim:
        cut = f", or cut it off at {fewer}" if fewer else ""
        return [f"pad dim {dim} of the batch to {more}{cut}", f"or {_settle(claims)}"]
    sizes = f"{more} or {fewer} samples" if fewer else f"{more} samples or a multiple, one for each of {pieces} devices"
    return [
        f"make batches of {sizes}, all devices together (--batch {more}, where a recipe takes it)",
        *([f"or drop the {size - fewer} samples of an uneven last batch"] if fewer else []),
        f'or pad to {more} samples, with "weight" 0 in the batch for those that do not count (outlay.train_step)',
        *_fewer_devices(claims, dim, axes),
        f"or, if dim 0 does not count samples, {_settle(claims)}",
    ]


def _settle(claims: Claims) -> str:
    whole = format_bytes(num_bytes(claims.shape, claims.dtype))
    return f'settle this leaf by a rule before: ("{claims.path}", outlay.replicate()), {whole} a device'


def _fewer_devices(claims: Claims, dim: int, axes: tuple[str, ...]) -> list[str]:
    """A smaller axis that divides, for the devices can serve another one."""
    (axis, size), *others = ((axis, claims.axis_sizes[axis]) for axis in axes)
    fits = math.gcd(claims.shape[dim], size)
    if others or fits == 1:
        return []
    return [f"or split over fewer devices: {axis}={fits}, and {size // fits} for another axis of the mesh"]


def choices(claims: Claims, dim: int, axes: tuple[str, ...]) -> list[str]:
    """The ways out of an indivisible dim, cheapest for a device first."""
    pieces = claims.num_pieces(axes)
    found = [_another_dim(claims, other, axes) for other in other_dims(claims, dim, axes)]
    fewer = [axis_subset for axis_subset in _smaller(axes) if claims.divides(dim, axis_subset)]
    found += [f"split it over {'+'.join(subset)} only" for subset in fewer]
    padded = math.ceil(claims.shape[dim] / pieces) * pieces
    row = num_bytes(claims.shape, claims.dtype) // claims.shape[dim]
    found.append(
        f"pad dim {dim} to {padded} in the model (+{padded - claims.shape[dim]}, "
        f"{format_bytes((padded - claims.shape[dim]) * row)} in all)"
    )
    whole = num_bytes(claims.local_shape(), claims.dtype)
    found.append(
        f'keep the dim whole with otherwise="replicate": {format_bytes(whole)} a device '
        f"({claims.whole_cost(dim, axes)})"
    )
    return [f"{'or ' if i else ''}{choice}" for i, choice in enumerate(found)]


def other_dims(claims: Claims, dim: int, axes: tuple[str, ...]) -> list[int]:
    """The free dims that these axes do divide, largest first."""
    fitting = [
        other
        for other in range(len(claims.shape))
        if other != dim and claims.dims[other] is None and claims.shape[other] and claims.divides(other, axes)
    ]
    return sorted(fitting, key=lambda other: (-claims.shape[other], other))


def _another_dim(claims: Claims, other: int, axes: tuple[str, ...]) -> str:
    dims: Dims = tuple(axes if i == other else taken or () for i, taken in enumerate(claims.dims))
    cost = format_bytes(num_bytes(claims.local_shape(dims), claims.dtype))
    return f'split dim {other} (size {claims.shape[other]}) with otherwise="another_dim": {cost} a device'


def _smaller(axes: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [(axis,) for axis in axes] if len(axes) > 1 else []
