"""PRNG keys as plain numbers, where the compiler chooses how values between programs are split.

It may split the numbers of a key over devices, and JAX refuses such an array of keys.
"""

from __future__ import annotations

from typing import Any

import jax


def impl_of(x: Any) -> Any:
    """Return the kind of the keys that an array, or a traced one, holds; None if it holds none."""
    return jax.random.key_impl(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else None


def without_impl(x: Any) -> Any:
    """Return keys as their numbers, and any other array as it is."""
    return x if impl_of(x) is None else jax.random.key_data(x)


def with_impl(x: Any, impl: Any) -> Any:
    """Return the numbers of keys as keys of a kind; with None the array as it is."""
    return x if impl is None else jax.random.wrap_key_data(x, impl=impl)
