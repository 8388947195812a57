"""Dropout with a key per sample, so that a mask depends on the sample and not on the device that holds it."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def dropout(x: jax.Array, keys: jax.Array | None, rate: float) -> jax.Array:
    """Zero each entry with probability `rate` and scale the rest by 1 / (1 - rate).

    Source: Srivastava et al. (2014), Dropout, JMLR 15.

    Args:
        x: activations (B, …).
        keys: B PRNG keys, or None to leave `x` as it is, in evaluation.
        rate: probability of zero.

    >>> keys = jax.random.split(jax.random.key(0), 3)
    >>> sorted(set(dropout(jnp.ones((3, 40)), keys, 0.5).ravel().tolist()))
    [0.0, 2.0]
    """
    if keys is None or rate == 0.0:
        return x
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1.0 - rate, x.shape[1:]))(keys)
    return jnp.where(kept, x / (1.0 - rate), jnp.zeros((), x.dtype))
