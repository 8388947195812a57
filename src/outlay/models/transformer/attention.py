"""Causal self-attention in which groups of query heads share a key and a value head."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.rotary import rotate


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention; scores and their softmax are float32.

    Source: Ainslie et al., GQA (arXiv:2305.13245), section 2.2.

    Args:
        query: (B, T, heads, head_dim).
        key: (B, T, kv_heads, head_dim); query head h attends through key head h // (heads / kv_heads).
        value: as `key`.

    Returns:
        (B, T, heads, head_dim), of the query's dtype.

    Example:
        >>> query, key = jnp.zeros((1, 3, 2, 4)), jnp.zeros((1, 3, 1, 4))
        >>> value = jnp.arange(3.0)[None, :, None, None] * jnp.ones((1, 3, 1, 4))
        >>> attend(query, key, value)[0, :, 0, 0].tolist()
        [0.0, 0.5, 1.0]
    """
    batch, num_tokens, num_heads, head_dim = query.shape
    grouped = query.reshape(batch, num_tokens, key.shape[2], num_heads // key.shape[2], head_dim)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, key, preferred_element_type=jnp.float32)
    visible = jnp.tril(jnp.ones((num_tokens, num_tokens), bool))[None, None, None]
    weights = jax.nn.softmax(jnp.where(visible, scores / math.sqrt(head_dim), -jnp.inf), axis=-1)
    mixed = jnp.einsum("bkgts,bskh->btkgh", weights.astype(value.dtype), value)
    return mixed.reshape(query.shape)


class Attention(nnx.Module):
    """Grouped-query attention with rotary embeddings, without biases.

    Kernels keep heads and features apart, `(width, heads, head_dim)`, so that a layout splits whole heads or says
    that it cannot.

    Args:
        config: the dims.
        rngs: source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        def heads(number: int) -> nnx.LinearGeneral:
            shape = (number, config.head_dim)
            return nnx.LinearGeneral(config.width, shape, use_bias=False, dtype=config.dtype, rngs=rngs)

        self.query, self.key, self.value = (heads(n) for n in (config.num_heads, *[config.num_kv_heads] * 2))
        self.output = nnx.LinearGeneral(
            (config.num_heads, config.head_dim),
            config.width,
            axis=(-2, -1),
            use_bias=False,
            kernel_init=branch_init(config),
            dtype=config.dtype,
            rngs=rngs,
        )
        # The scores are the one thing that is quadratic in the sequence, so they are never kept for the backward
        # pass. Where the whole layer is computed again, they are not kept anyway.
        self.attend = attend if config.remat else jax.checkpoint(attend)

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
        """From (B, T, width) to the same; `cos` and `sin` as from `rotation`."""
        query, key = (rotate(project(x), cos, sin) for project in (self.query, self.key))
        return self.output(self.attend(query, key, self.value(x)))


def branch_init(config: TransformerConfig) -> nnx.Initializer:
    """The initial kernel of a branch's last projection: so small that the branches of all layers add up to order one.

    Source: Radford et al. (2019), Language models are unsupervised multitask learners, section 2.3.
    """
    return nnx.initializers.variance_scaling(1 / (2 * config.num_layers), "fan_in", "truncated_normal")
