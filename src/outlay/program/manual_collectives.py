"""Collectives for steps that run in mode `manual`, where those of `jax.lax` have a trap.

Call them inside such a step, or inside `jax.shard_map`, on one device's shard. For everything else use `jax.lax`:
`psum`, `pmean`, `all_gather(..., tiled=True)`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import scatters_wrongly
from outlay.program.shard_collectives import scatter_apart

AxisNames = str | Sequence[str]


def mean_over(x: jax.Array, dim: int, axis: AxisNames, *, where: jax.Array | None = None) -> jax.Array:
    """Return the mean over a dim that is split over a mesh axis; the dim is kept, with size 1.

    The trap: `x.mean(dim)` is the mean of a device's own shard, so normalising by it is wrong. The mean of those means
    is wrong too once `where` leaves out entries, since devices then count differently. Here sums and counts are each
    summed over devices, in float32 at least, and then divided.

    Args:
        x: this device's shard.
        dim: the dim that is split.
        axis: the mesh axis, or axes, that it is split over.
        where: which entries count, a bool array that broadcasts to `x`; all without it.

    Returns:
        The mean, the same on every device of the axis; in the dtype of `x`, or float32 if that is not a float type.

    Example:
        Rows of mean 0 and deviation 1, of an array whose columns are split over 8 devices:

        >>> def normalise(x):
        ...     centred = x - outlay.collectives.mean_over(x, 1, "i")
        ...     return centred / jnp.sqrt(outlay.collectives.mean_over(centred**2, 1, "i"))
        >>> x = np.arange(32, dtype=np.float32).reshape(2, 16) ** 2
        >>> columns = P(None, "i")
        >>> rows = jax.shard_map(normalise, mesh=outlay.mesh(i=8), in_specs=columns, out_specs=columns)(x)
        >>> bool(np.allclose(rows.mean(axis=1), 0, atol=1e-6)), bool(np.allclose(rows.std(axis=1), 1))
        (True, True)
    """
    counted = jnp.ones(x.shape, bool) if where is None else jnp.broadcast_to(where, x.shape)
    exact = jnp.promote_types(x.dtype, jnp.float32)
    total = jax.lax.psum(jnp.sum(x, axis=dim, keepdims=True, where=counted, dtype=exact), axis)
    num = jax.lax.psum(jnp.sum(counted, axis=dim, keepdims=True, dtype=exact), axis)
    return (total / num).astype(x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else exact)


def ring_shift(x: jax.Array, axis: str, by: int = 1) -> jax.Array:
    """Pass shards around the ring of devices along an axis: device k sends to k + by and receives from k - by.

    The trap: `jax.lax.ppermute` takes (source, destination) pairs, gives zeros to a device that is in no pair, and a
    hand-written list easily turns the wrong way.

    Args:
        x: this device's shard.
        axis: the mesh axis.
        by: how many positions up the axis each shard moves; negative moves it down.

    Returns:
        The shard of the device `by` positions below, counted around the ring.

    Example:
        >>> def step(x):
        ...     return outlay.collectives.ring_shift(x, "i")
        >>> mesh = outlay.mesh(i=4, devices=jax.devices()[:4])
        >>> jax.shard_map(step, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(jnp.arange(4)).tolist()
        [3, 0, 1, 2]
    """
    size = jax.lax.axis_size(axis)
    return jax.lax.ppermute(x, axis, [(source, (source + by) % size) for source in range(size)])


def sum_scatter(x: jax.Array, axis: AxisNames, dim: int = 0) -> jax.Array:
    """Sum over the devices along an axis and keep this device's shard of the sum: half the traffic of `psum`.

    The trap: by default `jax.lax.psum_scatter` requires the dim to be exactly as long as the axis, and removes it.
    Here the dim is cut into equal shards, as a `PartitionSpec` would cut it.

    Args:
        x: this device's addend; of the same shape on every device.
        axis: the mesh axis, or axes, to sum over.
        dim: the dim along which the sum is split.

    Returns:
        This device's shard: the shape of `x` with `dim` divided by the size of the axis.

    Raises:
        ProgramError: the dim is not divisible by the size of the axis.

    Example:
        >>> rows = jnp.array([[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 1, 2]])
        >>> def step(row):  # (1, 4), one row a device
        ...     return outlay.collectives.sum_scatter(row, "i", dim=1)
        >>> mesh = outlay.mesh(i=4, devices=jax.devices()[:4])
        >>> jax.shard_map(step, mesh=mesh, in_specs=P("i"), out_specs=P(None, "i"))(rows).tolist()
        [[22, 20, 12, 17]]
    """
    size = jax.lax.axis_size(axis)
    if x.shape[dim] % size:
        up = -(-x.shape[dim] // size) * size
        raise ProgramError(
            f"sum_scatter: dim {dim} of {x.shape} cannot be cut into {size} equal pieces, one for each device along "
            f"{axis!r}: {x.shape[dim]} / {size} leaves {x.shape[dim] % size} over\n"
            f"  fix: another dim, or pad dim {dim} to {up}"
        )
    if scatters_wrongly(jax.default_backend()):
        return scatter_apart(x, (axis,) if isinstance(axis, str) else tuple(axis), dim)
    return jax.lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)


def axis_coordinates(*axes: str) -> jax.Array:
    """Return the coordinates of this device in the mesh: its index along each of the axes.

    The trap: `jax.lax.axis_index(("i", "j"))` is a single number, counted through both axes.

    Args:
        axes: names of mesh axes.

    Returns:
        The indices, int32 of shape (number of axes,), different on every device.

    Example:
        >>> def step():
        ...     return outlay.collectives.axis_coordinates("i", "j")[None]
        >>> table = jax.shard_map(step, mesh=outlay.mesh(i=4, j=2), in_specs=(), out_specs=P(("i", "j")))()
        >>> table.tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1], [3, 0], [3, 1]]
    """
    return jnp.stack([jax.lax.axis_index(axis) for axis in axes])


def halo(
    x: jax.Array, axis: str, width: int | tuple[int, int] = 1, dim: int = 0, *, periodic: bool = False, fill: float = 0
) -> jax.Array:
    """Pad a device's shard with the border rows of the neighbouring shards; call it inside `jax.shard_map`.

    The trap: with `jax.lax.ppermute` it is easy to swap the neighbours, and at an edge that is not periodic the
    devices get zeros, whatever the border value of the problem.

    Args:
        x: this device's shard.
        axis: the mesh axis that the dim is split over.
        width: the number of rows to take from each neighbour, or (from the one below, from the one above).
        dim: the dim that is split.
        periodic: whether the first and the last device are neighbours.
        fill: the value beyond an edge that is not periodic.

    Returns:
        The shard, longer by the widths along the dim; its own rows start at the lower width.

    Raises:
        ProgramError: a width is larger than the shard, or negative; or there is no such dim.

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
    _check_widths(x, axis, (below, above), dim)
    length = x.shape[dim]
    last = jax.lax.slice_in_dim(x, length - below, length, axis=dim)
    first = jax.lax.slice_in_dim(x, 0, above, axis=dim)
    from_below, from_above = ring_shift(last, axis, 1), ring_shift(first, axis, -1)
    if not periodic:
        index, size = jax.lax.axis_index(axis), jax.lax.axis_size(axis)
        border = jnp.asarray(fill, x.dtype)
        from_below = jnp.where(index == 0, border, from_below)
        from_above = jnp.where(index == size - 1, border, from_above)
    return jnp.concatenate([from_below, x, from_above], axis=dim)


def _check_widths(x: jax.Array, axis: str, widths: tuple[int, int], dim: int) -> None:
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
