"""Normalisation of the residual stream, computed in float32 and kept in the dtype it came in."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from outlay.models.transformer.config import TransformerConfig

EPSILON = 1e-5

cheap = functools.partial(jax.checkpoint, prevent_cse=False)
"""Compute a function again in the backward pass, instead of keeping what it computes inside, mostly in float32.

For what costs next to nothing beside a matrix product. Layers run in a scan, which keeps its passes apart by itself, so
nothing has to prevent the compiler from merging the two.
"""


class Norm(nnx.Module):
    """Root mean square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467) or layer normalisation.

    Args:
        config: which of them, and the dims.
    """

    def __init__(self, config: TransformerConfig) -> None:
        self.centred = config.norm == "layer"
        self.scale = nnx.Param(jnp.ones(config.width, config.param_dtype))
        self.bias = nnx.Param(jnp.zeros(config.width, config.param_dtype)) if self.centred and config.biases else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """From (…, width) to the same, of the same dtype."""
        bias = None if self.bias is None else self.bias[...]
        return _normalised(x, self.scale[...], bias, self.centred)


@functools.partial(cheap, static_argnums=3)
def _normalised(x: jax.Array, scale: jax.Array, bias: jax.Array | None, centred: bool) -> jax.Array:
    exact = x.astype(jnp.float32)
    if centred:
        exact = exact - exact.mean(axis=-1, keepdims=True)
    size = jax.lax.rsqrt(jnp.square(exact).mean(axis=-1, keepdims=True) + EPSILON)
    normed = exact * size * _over(x, scale)
    return (normed if bias is None else normed + _over(x, bias)).astype(x.dtype)


def _over(x: jax.Array, of_features: jax.Array) -> jax.Array:
    """One number a feature, with as many dims as `x`."""
    return jnp.expand_dims(of_features.astype(jnp.float32), range(x.ndim - 1))
