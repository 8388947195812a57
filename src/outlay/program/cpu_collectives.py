"""Collectives for CPU devices of several processes, where those of gloo are slow.

`psum` between two processes and `psum_scatter` between any number took longer than the bytes that they move; the same
bytes exchanged and then added took less (benchmarks/results).
"""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
from jax.sharding import Mesh

Axes = tuple[str, ...]


def are_apart(mesh: Mesh, axes: Axes) -> bool:
    """Whether what is shared over these axes goes from process to process, between CPU devices."""
    groups = _groups(mesh, axes)
    return any(
        device.platform == "cpu" and device.process_index != first.process_index
        for first, *others in groups
        for device in others
    )


def are_pairs(mesh: Mesh, axes: Axes) -> bool:
    """Whether it goes between two devices, each of another process."""
    return math.prod(mesh.shape[axis] for axis in axes) == 2 and are_apart(mesh, axes)


def exchange_and_add(x: jax.Array, axes: Axes) -> jax.Array:
    """The sum over two devices, on both; what `psum` gives, but JAX does not know that it is the same on both."""
    return x + jax.lax.ppermute(x, axes, [(0, 1), (1, 0)])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather(piece: jax.Array, axes: Axes, dim: int) -> jax.Array:
    """`all_gather` along a dim whose transpose is `scatter`."""
    return jax.lax.all_gather(piece, axes, axis=dim, tiled=True)


def _gather_forward(piece: jax.Array, axes: Axes, dim: int) -> tuple[jax.Array, None]:
    return gather(piece, axes, dim), None


def _gather_backward(axes: Axes, dim: int, _: None, grad: jax.Array) -> tuple[jax.Array]:
    return (scatter(grad, axes, dim),)


gather.defvjp(_gather_forward, _gather_backward)


def scatter(x: jax.Array, axes: Axes, dim: int) -> jax.Array:
    """Each device's piece of the sum along a dim, as from `psum_scatter`: pieces are exchanged, then added."""
    num = jax.lax.axis_size(axes)
    pieces = x.reshape(*x.shape[:dim], num, x.shape[dim] // num, *x.shape[dim + 1 :])
    return jax.lax.all_to_all(pieces, axes, dim, dim, tiled=True).sum(dim)


def _groups(mesh: Mesh, axes: Axes) -> np.ndarray:
    """The devices that share something over the axes, one row a group."""
    positions = [mesh.axis_names.index(axis) for axis in axes]
    last = range(-len(positions), 0)
    return np.moveaxis(mesh.devices, positions, last).reshape(-1, math.prod(mesh.shape[axis] for axis in axes))
