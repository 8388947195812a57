"""Rotary position embedding: a query and a key turned by angles that grow with their positions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Angles = tuple[jax.Array, jax.Array]
"""Cosines and sines, as from `rotation`."""


def rotation(num_tokens: int, head_dim: int, base: float) -> Angles:
    """Cosines and sines of the angle of every position and pair of features, (T, head_dim / 2) float32 each.

    Pair i turns by `base ** (-2 i / head_dim)` radians a token.
    Source: Su et al., RoFormer (arXiv:2104.09864), section 3.2.2.

    Args:
        num_tokens: T, positions from 0.
        head_dim: features of a head, even.
        base: see above.

    Example:
        >>> cos, sin = rotation(3, 4, 100.0)
        >>> angles = [[0, 0], [1, 0.1], [2, 0.2]]
        >>> np.allclose(cos, np.cos(angles)), np.allclose(sin, np.sin(angles))
        (True, True)
    """
    frequencies = base ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = jnp.arange(num_tokens, dtype=jnp.float32)[:, None] * frequencies[None]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Turn each pair of features, i and i + head_dim / 2, by the angle of its position; computed in float32.

    Args:
        x: queries or keys (B, T, heads, head_dim).
        cos: cosines (T, head_dim / 2).
        sin: sines, alike.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
