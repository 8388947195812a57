"""Sum many arrays over mesh axes in few collectives."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from outlay.execute.between_processes import are_pairs, exchange_and_add

BUCKET_BYTES = 2**25
"""Leaves are summed together up to this size: large enough to hide a collective's start, small enough to overlap."""

EXCHANGE_BYTES = 2**20
"""The same between two processes: an exchange starts faster, and copying a larger leaf into a bucket takes longer."""


def sum_in_buckets(tree: Any, axes: Any, mesh: Mesh) -> Any:
    """Each leaf summed over its axes; small leaves of the same axes and dtype share flat collectives.

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
        pairs = are_pairs(mesh, names)
        total = exchange_and_add if pairs else jax.lax.psum
        for bucket in _buckets(positions, leaves, EXCHANGE_BYTES if pairs else BUCKET_BYTES):
            if len(bucket) == 1:
                leaves[bucket[0]] = total(leaves[bucket[0]], names)
                continue
            summed = total(jnp.concatenate([leaves[i].ravel() for i in bucket]), names)
            ends = [0]
            for i in bucket:
                ends.append(ends[-1] + leaves[i].size)
                leaves[i] = summed[ends[-2] : ends[-1]].reshape(leaves[i].shape)
    return structure.unflatten(leaves)


def _buckets(positions: list[int], leaves: list[Any], limit: int) -> Iterator[list[int]]:
    bucket, size = [], 0
    for position in positions:
        if leaves[position].nbytes >= limit:  # a bucket by itself, and no copy
            yield [position]
            continue
        if bucket and size + leaves[position].nbytes > limit:
            yield bucket
            bucket, size = [], 0
        bucket.append(position)
        size += leaves[position].nbytes
    if bucket:
        yield bucket
