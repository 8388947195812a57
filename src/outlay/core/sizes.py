"""Compute the bytes of arrays from shape and dtype.

Not in `quantities`, because the launcher's parent process reads that and never imports JAX.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp


def num_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Return the bytes of an array; of sub-byte dtypes (int4, float4) the bits are rounded up to bytes.

    Typed PRNG keys count the bytes of their key data.

    >>> num_bytes((4, 8), "float32")
    128
    >>> num_bytes((3,), jnp.int4)
    2
    """
    return -(-math.prod(shape) * num_bits(dtype) // 8)


def is_count(value: Any) -> bool:
    """Return whether a value read from a file is an integer from 0 on; JSON's `true` is not one."""
    return type(value) is int and value >= 0


@functools.lru_cache(maxsize=256)
def num_bits(dtype: Any) -> int:
    """Return the bits of one element of a dtype (a dtype object, a scalar type or a dtype's name)."""
    if str(dtype).startswith("key<"):  # typed PRNG keys are not NumPy dtypes
        return _KEY_BITS[str(dtype)]
    dtype = jnp.dtype(dtype)
    if dtype == jnp.bool_:
        return 8
    # Not from itemsize: NumPy stores int4 and float8 variants in whole bytes, XLA packs what is below a byte.
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.finfo(dtype).bits
    return 8 * dtype.itemsize


_KEY_BITS = {"key<fry>": 64, "key<rbg>": 128, "key<urbg>": 128}
"""Key data of JAX's PRNG implementations: threefry2x32, rbg, unsafe_rbg."""
