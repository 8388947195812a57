"""The rows that every device has computed of some arrays, put together on every device by one collective."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp


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


_SIGNS_A_WORD = 16


def is_signs(dtype: jnp.dtype) -> bool:
    """Whether values of this dtype are signs: int8, of which only -1, 0 and 1 are used."""
    return dtype == jnp.int8


def pack(x: jax.Array) -> jax.Array:
    """An array as words.

    >>> pack(jnp.array([1, -1, 0, 1], "int8")).tolist() == [1 + (3 << 2) + (1 << 6)]
    True
    """
    if is_signs(x.dtype):
        codes = _filled((x.reshape(-1) & 3).astype(jnp.uint32), _SIGNS_A_WORD)
        return (codes << _shifts()).sum(1, dtype=jnp.uint32)
    bare = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x
    octets = jax.lax.bitcast_convert_type(bare, jnp.uint8).reshape(-1)
    return jax.lax.bitcast_convert_type(_filled(octets, 4), jnp.uint32)


def unpack(words: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    """The array of that shape and dtype that was packed.

    >>> unpack(pack(jnp.array([1, -1, 0, 1], "int8")), jax.ShapeDtypeStruct((4,), "int8")).tolist()
    [1, -1, 0, 1]
    """
    size = math.prod(like.shape)
    if is_signs(like.dtype):
        codes = (words[:, None] >> _shifts()) & 3
        return ((codes.reshape(-1)[:size] ^ 2).astype(jnp.int8) - jnp.int8(2)).reshape(like.shape)
    octets = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(-1)[: size * like.dtype.itemsize]
    if like.dtype == jnp.bool_:
        return octets.reshape(like.shape) != 0
    if like.dtype.itemsize == 1:
        return jax.lax.bitcast_convert_type(octets.reshape(like.shape), like.dtype)
    return jax.lax.bitcast_convert_type(octets.reshape(*like.shape, like.dtype.itemsize), like.dtype)


def num_words(like: jax.ShapeDtypeStruct) -> int:
    """How many words an array takes."""
    size = math.prod(like.shape)
    return -(-size // _SIGNS_A_WORD) if is_signs(like.dtype) else -(-size * like.dtype.itemsize // 4)


def _filled(flat: jax.Array, multiple: int) -> jax.Array:
    rows = -(-flat.size // multiple)
    return jnp.pad(flat, (0, rows * multiple - flat.size)).reshape(rows, multiple)


def _shifts() -> jax.Array:
    return jnp.arange(0, 2 * _SIGNS_A_WORD, 2, dtype=jnp.uint32)[None]
