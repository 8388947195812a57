"""The rows that every device has computed of some arrays, put together on every device by one collective."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from outlay.execute.spike_packing import num_words, pack, unpack


def exchange_rows(pieces: Any, num_rows: Any, axis: str) -> Any:
    """The whole arrays, inside `jax.shard_map`.

    Args:
        pieces: a tree of (steps, rows, ...), this device's rows, in the order of the devices.
        num_rows: a tree of the same structure: how many rows there are in all; those beyond are left out.
        axis: the mesh axis over which the rows are split.
    """
    leaves, structure = jax.tree.flatten(pieces)
    if not leaves:
        return pieces
    likes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    words = jax.lax.all_gather(jnp.concatenate([pack(leaf) for leaf in leaves]), axis)
    whole, start = [], 0
    for like, num in zip(likes, jax.tree.leaves(num_rows), strict=True):
        stop = start + num_words(like)
        rows = jax.vmap(lambda w, like=like: unpack(w, like))(words[:, start:stop])
        whole.append(_side_by_side(rows)[:, :num])
        start = stop
    return structure.unflatten(whole)


def _side_by_side(rows: jax.Array) -> jax.Array:
    """(devices, steps, rows, ...) to (steps, devices * rows, ...)."""
    by_step = jnp.swapaxes(rows, 0, 1)
    return by_step.reshape(by_step.shape[0], -1, *by_step.shape[3:])
