"""Arrays as 32-bit words, so that many are exchanged at once; spikes take two bits each."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

_SPIKES_A_WORD = 16


def is_spikes(dtype: jnp.dtype) -> bool:
    """Whether values of this dtype are spikes: int8, of which only -1, 0 and 1 are used."""
    return dtype == jnp.int8


def pack(x: jax.Array) -> jax.Array:
    """An array as words.

    >>> pack(jnp.array([1, -1, 0, 1], "int8")).tolist() == [1 + (3 << 2) + (1 << 6)]
    True
    """
    if is_spikes(x.dtype):
        codes = _filled((x.reshape(-1) & 3).astype(jnp.uint32), _SPIKES_A_WORD)
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
    if is_spikes(like.dtype):
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
    return -(-size // _SPIKES_A_WORD) if is_spikes(like.dtype) else -(-size * like.dtype.itemsize // 4)


def _filled(flat: jax.Array, multiple: int) -> jax.Array:
    rows = -(-flat.size // multiple)
    return jnp.pad(flat, (0, rows * multiple - flat.size)).reshape(rows, multiple)


def _shifts() -> jax.Array:
    return jnp.arange(0, 2 * _SPIKES_A_WORD, 2, dtype=jnp.uint32)[None]
