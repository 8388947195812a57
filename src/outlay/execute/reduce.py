"""Sum many arrays over mesh axes in few collectives."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from outlay.execute.between_processes import are_apart, are_pairs, exchange_and_add

BUCKET_BYTES = 2**25
"""Small leaves are summed together up to this size: enough to hide a collective's start, and it can still overlap."""

OWN_BYTES = 2**17
"""A leaf of this size and more is summed by itself: copying it into a bucket and out takes longer than a start."""

OWN_BYTES_APART = 2**20
"""The same between processes, where a start takes longer."""


def sum_in_buckets(tree: Any, axes: Any, mesh: Mesh) -> Any:
    """Each leaf summed over its axes; small leaves of the same axes and dtype share flat collectives.

    Large leaves are operands of their own, which XLA combines into one collective without copying them.

    Args:
        tree: arrays, inside `jax.shard_map`; with `check_vma=False` where `are_pairs` holds for some axes.
        axes: for each leaf the tuple of axes to sum over, as a leaf; empty for none.
        mesh: the mesh.
    """
    leaves, structure = jax.tree.flatten(tree)
    groups = collections.defaultdict(list)
    for position, leaf_axes in enumerate(structure.flatten_up_to(axes)):
        if leaf_axes:
            groups[tuple(leaf_axes), leaves[position].dtype].append(position)
    for (names, _), positions in groups.items():
        total = exchange_and_add if are_pairs(mesh, names) else jax.lax.psum
        for bucket in _buckets(positions, leaves, OWN_BYTES_APART if are_apart(mesh, names) else OWN_BYTES):
            if len(bucket) == 1:
                leaves[bucket[0]] = total(leaves[bucket[0]], names)
                continue
            summed = total(jnp.concatenate([leaves[i].ravel() for i in bucket]), names)
            ends = [0]
            for i in bucket:
                ends.append(ends[-1] + leaves[i].size)
                leaves[i] = summed[ends[-2] : ends[-1]].reshape(leaves[i].shape)
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
