"""Gather, scatter and sum the shards of a step in mode manual, and replace what is slow between processes.

Between CPU devices of several processes gloo's `psum` (of two) and `psum_scatter` (of any number) take longer than
exchanging the same bytes and adding them (benchmarks/results). In a job, `psum_scatter` over CPU devices is wrong at
times on the older JAX, of one process as well, so it is never used there.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from outlay.core.jax_compat import scatters_wrongly

Axes = tuple[str, ...]


def are_apart(mesh: Mesh, axes: Axes) -> bool:
    """Return whether a collective over these axes goes between processes, on CPU devices."""
    positions = [mesh.axis_names.index(axis) for axis in axes]
    # One row for each group of devices that such a collective joins.
    groups = np.moveaxis(mesh.devices, positions, range(-len(positions), 0)).reshape(-1, _num_joined(mesh, axes))
    return any(
        device.platform == "cpu" and device.process_index != first.process_index
        for first, *others in groups
        for device in others
    )


def are_pairs(mesh: Mesh, axes: Axes) -> bool:
    """Return whether each group of a collective over these axes has two devices."""
    return _num_joined(mesh, axes) == 2 and are_apart(mesh, axes)


def _num_joined(mesh: Mesh, axes: Axes) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def exchange_and_add(x: jax.Array, axes: Axes) -> jax.Array:
    """Sum over two devices, on both: `psum`'s result, but to JAX it varies over the axis."""
    return x + jax.lax.ppermute(x, axes, [(0, 1), (1, 0)])


def gather(piece: jax.Array, mesh: Mesh, axes: Axes, dim: int) -> jax.Array:
    """Gather the shards along a dim over mesh axes; its transpose is `scatter`."""
    if _must_exchange(mesh, axes):
        return gather_apart(piece, axes, dim)
    return jax.lax.all_gather(piece, axes, axis=dim, tiled=True)


def scatter(x: jax.Array, mesh: Mesh, axes: Axes, dim: int) -> jax.Array:
    """Sum over mesh axes, and return this device's shard of the sum along a dim."""
    if _must_exchange(mesh, axes):
        return scatter_apart(x, axes, dim)
    return jax.lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True)


def _must_exchange(mesh: Mesh, axes: Axes) -> bool:
    """Return whether sums are scattered by an exchange: because it is faster there, or right."""
    return are_apart(mesh, axes) or scatters_wrongly(mesh.devices.flat[0].platform)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather_apart(piece: jax.Array, axes: Axes, dim: int) -> jax.Array:
    """Gather along a dim, like `all_gather`, but with `scatter_apart` as its transpose."""
    return jax.lax.all_gather(piece, axes, axis=dim, tiled=True)


gather_apart.defvjp(
    lambda piece, axes, dim: (gather_apart(piece, axes, dim), None),
    lambda axes, dim, _, grad: (scatter_apart(grad, axes, dim),),
)


def scatter_apart(x: jax.Array, axes: Axes, dim: int) -> jax.Array:
    """Reduce-scatter along a dim, like `psum_scatter`: shards are exchanged, then added."""
    num = jax.lax.axis_size(axes)
    pieces = x.reshape(*x.shape[:dim], num, x.shape[dim] // num, *x.shape[dim + 1 :])
    return jax.lax.all_to_all(pieces, axes, dim, dim, tiled=True).sum(dim)


BUCKET_BYTES = 2**25
"""Small leaves are summed together up to this size: enough to hide a collective's start, and it can still overlap."""

OWN_BYTES = 2**17
"""A leaf of this size and more is summed by itself: copying it into a bucket and out takes longer than a start."""

OWN_BYTES_APART = 2**20
"""The same between processes, where a start takes longer."""


def sum_in_buckets(tree: Any, axes: Any, mesh: Mesh) -> Any:
    """Sum each leaf over its axes; small leaves with the same axes and dtype share a flat collective.

    Large leaves stay separate operands, which XLA combines into one collective without copying them.

    Args:
        tree: arrays, inside `jax.shard_map`; with `check_vma=False` where `are_pairs` holds for some axes.
        axes: for each leaf the tuple of axes to sum over, as a leaf; empty for none.
        mesh: the mesh.
    """
    return _in_buckets(tree, axes, mesh, lambda names: exchange_and_add if are_pairs(mesh, names) else jax.lax.psum)


def max_in_buckets(tree: Any, axes: Any, mesh: Mesh) -> Any:
    """Return the largest of each entry over a leaf's axes; otherwise like `sum_in_buckets`."""
    return _in_buckets(tree, axes, mesh, lambda names: jax.lax.pmax)


def _in_buckets(tree: Any, axes: Any, mesh: Mesh, collective: Callable[[Axes], Callable[..., Any]]) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    groups = collections.defaultdict(list)
    for position, leaf_axes in enumerate(structure.flatten_up_to(axes)):
        if leaf_axes:
            groups[tuple(leaf_axes), leaves[position].dtype].append(position)
    for (names, _), positions in groups.items():
        combine = collective(names)
        for bucket in _buckets(positions, leaves, OWN_BYTES_APART if are_apart(mesh, names) else OWN_BYTES):
            if len(bucket) == 1:
                leaves[bucket[0]] = combine(leaves[bucket[0]], names)
                continue
            combined = combine(jnp.concatenate([leaves[i].ravel() for i in bucket]), names)
            ends = [0]
            for i in bucket:
                ends.append(ends[-1] + leaves[i].size)
                leaves[i] = combined[ends[-2] : ends[-1]].reshape(leaves[i].shape)
    return structure.unflatten(leaves)


def _buckets(positions: list[int], leaves: list[Any], own_bytes: int) -> Iterator[list[int]]:
    bucket, size = [], 0
    for position in positions:
        if leaves[position].nbytes >= own_bytes:
            yield [position]
            continue
        if bucket and size + leaves[position].nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(position)
        size += leaves[position].nbytes
    if bucket:
        yield bucket
