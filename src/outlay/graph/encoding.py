"""How outputs of parts are encoded in 32-bit words on their way between devices."""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp

from outlay.core.error_types import ProgramError

Encoding = Literal["whole", "ternary"]
"""`whole`: each bit of every entry; `ternary`: two bits an entry, which is -1, 0 or 1."""
_TERNARIES_A_WORD = 16


def pack(x: jax.Array, encoding: Encoding = "whole") -> jax.Array:
    """Pack an array into 32-bit words.

    Raises:
        ProgramError: a ternary array is not one of signed integers.

    >>> pack(jnp.array([1, -1, 0, 1], "int8"), "ternary").tolist() == [1 + (3 << 2) + (1 << 6)]
    True
    """
    if encoding == "ternary":
        if not jnp.issubdtype(x.dtype, jnp.signedinteger):
            raise ProgramError(
                f'an output of {x.dtype} is encoded as "ternary" (Part.encodings), which is for entries -1, 0 and 1\n'
                '  fix: let the step return int8, or leave the encoding out: "whole" keeps every bit'
            )
        codes = _filled((x.reshape(-1) & 3).astype(jnp.uint32), _TERNARIES_A_WORD)
        return (codes << _shifts()).sum(1, dtype=jnp.uint32)
    octets = jax.lax.bitcast_convert_type(_of_octets(x), jnp.uint8).reshape(-1)
    return jax.lax.bitcast_convert_type(_filled(octets, 4), jnp.uint32)


def unpack(words: jax.Array, like: jax.ShapeDtypeStruct, encoding: Encoding = "whole") -> jax.Array:
    """Unpack an array of this shape and dtype.

    >>> words = pack(jnp.array([1, -1, 0, 1], "int8"), "ternary")
    >>> unpack(words, jax.ShapeDtypeStruct((4,), "int8"), "ternary").tolist()
    [1, -1, 0, 1]
    """
    size = math.prod(like.shape)
    if encoding == "ternary":
        codes = (words[:, None] >> _shifts()) & 3
        # Two bits in two's complement: flipping the upper bit and subtracting 2 extends the sign.
        return ((codes.reshape(-1)[:size] ^ 2).astype(like.dtype) - jnp.asarray(2, like.dtype)).reshape(like.shape)
    bare = jax.eval_shape(_of_octets, like)
    octets = jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(-1)[: math.prod(bare.shape) * bare.dtype.itemsize]
    # To the same width a bitcast takes no dim of octets.
    shape = bare.shape if bare.dtype.itemsize == 1 else (*bare.shape, bare.dtype.itemsize)
    return _from_octets(jax.lax.bitcast_convert_type(octets.reshape(shape), bare.dtype), like.dtype)


def num_words(like: Any, encoding: Encoding = "whole") -> int:
    """Return the number of words that an array of this shape and dtype takes."""
    if encoding == "ternary":
        return -(-math.prod(like.shape) // _TERNARIES_A_WORD)
    bare = jax.eval_shape(_of_octets, like)
    return -(-math.prod(bare.shape) * bare.dtype.itemsize // 4)


def _of_octets(x: jax.Array) -> jax.Array:
    """Return an array of the same information that a bitcast takes: no booleans, complex numbers or parts of octets."""
    if x.dtype == jnp.bool_:
        return x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jnp.stack([x.real, x.imag], axis=-1)
    if _is_below_an_octet(x.dtype):
        return x.astype(jnp.int8) if jnp.issubdtype(x.dtype, jnp.integer) else x.astype(jnp.float32)
    return x


def _from_octets(x: jax.Array, dtype: Any) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.lax.complex(x[..., 0], x[..., 1])
    return x.astype(dtype)


def _is_below_an_octet(dtype: Any) -> bool:
    info = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    return info(dtype).bits < 8


def _filled(flat: jax.Array, multiple: int) -> jax.Array:
    rows = -(-flat.size // multiple)
    return jnp.pad(flat, (0, rows * multiple - flat.size)).reshape(rows, multiple)


def _shifts() -> jax.Array:
    return jnp.arange(0, 2 * _TERNARIES_A_WORD, 2, dtype=jnp.uint32)[None]
