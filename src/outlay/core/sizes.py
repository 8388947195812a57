"""Byte arithmetic: what an array of a shape and dtype costs.

Apart from `quantities`, which the launcher's parent reads too: it never imports JAX.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp


def num_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of an array; sub-byte dtypes such as int4 and float4 count their bits, rounded up to whole bytes.

    Typed PRNG keys count the bytes of their key data.

    >>> num_bytes((4, 8), "float32")
    128
    >>> num_bytes((3,), jnp.int4)
    2
    """
    return -(-math.prod(shape) * num_bits(dtype) // 8)


def is_count(value: Any) -> bool:
    """Whether a value that was read from a file is a whole number from 0 on; JSON's `true` is none."""
    return type(value) is int and value >= 0


@functools.lru_cache(maxsize=256)
def num_bits(dtype: Any) -> int:
    """Bits of one element of a dtype (a dtype object, a scalar type or a dtype's name)."""
    if str(dtype).startswith("key<"):  # typed PRNG keys are not numpy dtypes
        return _KEY_BITS[str(dtype)]
    dtype = jnp.dtype(dtype)
    if dtype == jnp.bool_:
        return 8
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits
    return 8 * dtype.itemsize


_KEY_BITS = {"key<fry>": 64, "key<rbg>": 128, "key<urbg>": 128}
"""Key data of JAX's PRNG implementations: threefry2x32, rbg, unsafe_rbg."""
