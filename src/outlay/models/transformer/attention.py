"""Causal self-attention in which groups of query heads share a key and a value head."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.norm import cheap
from outlay.models.transformer.rotary import Angles, rotate


def attend(query: jax.Array, key: jax.Array, value: jax.Array, window: int | None = None) -> jax.Array:
    """Causal attention; scores and their softmax are float32.

    Source: Ainslie et al., GQA (arXiv:2305.13245), section 2.2.

    Args:
        query: (B, T, heads, head_dim).
        key: (B, T, kv_heads, head_dim); query head h attends through key head h // (heads / kv_heads).
        value: as `key`.
        window: how many tokens a query sees, itself among them; all before it if None.

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
    ahead = jnp.arange(num_tokens)[:, None] - jnp.arange(num_tokens)[None]
    visible = (ahead >= 0) & (ahead < (window or num_tokens))
    visible = visible[None, None, None]
    weights = jax.nn.softmax(jnp.where(visible, scores / math.sqrt(head_dim), -jnp.inf), axis=-1)
    mixed = jnp.einsum("bkgts,bskh->btkgh", weights.astype(value.dtype), value)
    return mixed.reshape(query.shape)


class Attention(nnx.Module):
    """Grouped-query attention, with rotary embeddings where the config asks for them.

    Kernels keep heads and features apart, `(width, heads, head_dim)`, so that a layout splits whole heads or says
    that it cannot.

    Args:
        config: the dims.
        rngs: source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        made = functools.partial(
            nnx.LinearGeneral,
            use_bias=config.biases,
            dtype=jnp.dtype(config.dtype),
            param_dtype=jnp.dtype(config.param_dtype),
            rngs=rngs,
        )
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.query, self.key, self.value = (made(config.width, (number, config.head_dim)) for number in heads)
        self.output = made(
            (config.num_heads, config.head_dim), config.width, axis=(-2, -1), kernel_init=branch_init(config)
        )
        self.window = config.window

    def __call__(self, x: jax.Array, angles: Angles | None) -> jax.Array:
        """From (B, T, width) to the same; `angles` turn queries and keys."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        if angles is not None:
            query, key = (cheap(rotate)(heads, *angles) for heads in (query, key))
        query, key, value = (
            checkpoint_name(heads, name) for heads, name in ((query, "query"), (key, "key"), (value, "value"))
        )
        # The scores are the one thing that is quadratic in the sequence, so they are never kept for the backward pass.
        mixed = jax.checkpoint(functools.partial(attend, window=self.window), prevent_cse=False)(query, key, value)
        return self.output(checkpoint_name(mixed, "attention"))


def branch_init(config: TransformerConfig) -> nnx.Initializer:
    """The initial kernel of a branch's last projection: so small that the branches of all layers add up to order one.

    Source: Radford et al. (2019), Language models are unsupervised multitask learners, section 2.3.
    """
    return nnx.initializers.variance_scaling(1 / (2 * config.num_layers), "fan_in", "truncated_normal")
