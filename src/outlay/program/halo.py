"""The neighbours' borders around one's own piece, for stencils and convolutions over a dim that is split."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from outlay.core.error_types import ProgramError
from outlay.program.manual_collectives import ring_shift


def halo(
    x: jax.Array, axis: str, width: int | tuple[int, int] = 1, dim: int = 0, *, periodic: bool = False, fill: float = 0
) -> jax.Array:
    """Put the border rows of the neighbouring pieces around a device's own piece; called inside `jax.shard_map`.

    The trap: with `jax.lax.ppermute` by hand it is easy to swap the neighbours, and at an edge that is not periodic
    the devices there get zeros, whatever the problem's border value is.

    Args:
        x: this device's piece.
        axis: the mesh axis that the dim is split over.
        width: how many rows to take from each neighbour, or (from the one below, from the one above).
        dim: the dim that is split.
        periodic: whether the first and the last device are neighbours.
        fill: what stands beyond an edge that is not periodic.

    Returns:
        The piece, longer by the widths along the dim; its own rows start at the lower width.

    Raises:
        ProgramError: a width is larger than the piece, or negative; or there is no such dim.

    Example:
        The second difference of an array that is split over 8 devices:

        >>> def second_difference(x):
        ...     wide = outlay.collectives.halo(x, "i", periodic=True)
        ...     return wide[:-2] - 2 * wide[1:-1] + wide[2:]
        >>> x = jnp.arange(16.0) ** 2
        >>> apply = jax.shard_map(second_difference, mesh=outlay.mesh(i=8), in_specs=P("i"), out_specs=P("i"))
        >>> apply(x)[1:15].tolist() == [2.0] * 14
        True
    """
    below, above = (width, width) if isinstance(width, int) else width
    _refuse(x, axis, (below, above), dim)
    length = x.shape[dim]
    last = jax.lax.slice_in_dim(x, length - below, length, axis=dim)
    first = jax.lax.slice_in_dim(x, 0, above, axis=dim)
    from_below, from_above = ring_shift(last, axis, 1), ring_shift(first, axis, -1)
    if not periodic:
        place, size = jax.lax.axis_index(axis), jax.lax.axis_size(axis)
        border = jnp.asarray(fill, x.dtype)
        from_below = jnp.where(place == 0, border, from_below)
        from_above = jnp.where(place == size - 1, border, from_above)
    return jnp.concatenate([from_below, x, from_above], axis=dim)


def _refuse(x: jax.Array, axis: str, widths: tuple[int, int], dim: int) -> None:
    if not -x.ndim <= dim < x.ndim:
        raise ProgramError(f"halo: there is no dim {dim} in a piece {x.shape}")
    length, size = x.shape[dim], jax.lax.axis_size(axis)
    if all(0 <= width <= length for width in widths):
        return
    fewer = [count for count in range(1, size) if size % count == 0 and length * size // count >= max(widths)]
    fix = f"split dim {dim} over {max(fewer)} devices at most" if fewer and min(widths) >= 0 else "a smaller width"
    raise ProgramError(
        f"halo: widths {widths} do not fit a piece {x.shape}: dim {dim} is {length} long on each of the {size} devices "
        f"along {axis!r}, and rows come from the next device only\n"
        f"  fix: {fix}"
    )
