"""Replace the collectives between CPU devices of several processes where gloo's are slow.

`psum` between two processes, and `psum_scatter` between any number, take longer than exchanging the same bytes and
adding them (benchmarks/results).
"""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
from jax.sharding import Mesh

Axes = tuple[str, ...]


def are_apart(mesh: Mesh, axes: Axes) -> bool:
    """Return whether a collective over these axes goes between processes, on CPU devices."""
    groups = _groups(mesh, axes)
    return any(
        device.platform == "cpu" and device.process_index != first.process_index
        for first, *others in groups
        for device in others
    )


def are_pairs(mesh: Mesh, axes: Axes) -> bool:
    """Return whether such a collective joins exactly two devices."""
    return math.prod(mesh.shape[axis] for axis in axes) == 2 and are_apart(mesh, axes)


def exchange_and_add(x: jax.Array, axes: Axes) -> jax.Array:
    """Sum over two devices, on both: `psum`'s result, but to JAX it varies over the axis."""
    return x + jax.lax.ppermute(x, axes, [(0, 1), (1, 0)])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather(piece: jax.Array, axes: Axes, dim: int) -> jax.Array:
    """Gather along a dim, like `all_gather`, but with `scatter` as its transpose."""
    return jax.lax.all_gather(piece, axes, axis=dim, tiled=True)


def _gather_forward(piece: jax.Array, axes: Axes, dim: int) -> tuple[jax.Array, None]:
    return gather(piece, axes, dim), None


def _gather_backward(axes: Axes, dim: int, _: None, grad: jax.Array) -> tuple[jax.Array]:
    return (scatter(grad, axes, dim),)


gather.defvjp(_gather_forward, _gather_backward)


def scatter(x: jax.Array, axes: Axes, dim: int) -> jax.Array:
    """Reduce-scatter along a dim, like `psum_scatter`: shards are exchanged, then added."""
    num = jax.lax.axis_size(axes)
    pieces = x.reshape(*x.shape[:dim], num, x.shape[dim] // num, *x.shape[dim + 1 :])
    return jax.lax.all_to_all(pieces, axes, dim, dim, tiled=True).sum(dim)


def _groups(mesh: Mesh, axes: Axes) -> np.ndarray:
    """Return the groups of devices that a collective over the axes joins, one row each."""
    positions = [mesh.axis_names.index(axis) for axis in axes]
    last = range(-len(positions), 0)
    return np.moveaxis(mesh.devices, positions, last).reshape(-1, math.prod(mesh.shape[axis] for axis in axes))
