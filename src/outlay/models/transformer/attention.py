"""Causal self-attention in which groups of query heads share a key and a value head."""

from __future__ import annotations

import functools

import jax
from flax import nnx

from outlay.core.constrain import ruled_spec
from outlay.models.attention.dot_product import attention
from outlay.models.transformer.adapters import projection
from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.norm import cheap
from outlay.models.transformer.rotary import Angles, rotate
from outlay.models.transformer.values import named


class Attention(nnx.Module):
    """Grouped-query attention, with rotary embeddings where the config asks for them.

    Kernels keep heads and features apart, `(width, heads, head_dim)`, so that a layout splits whole heads or says
    that it cannot.

    Args:
        config: the dims.
        rngs: source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        made = projection(config, nnx.LinearGeneral, rngs)
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.query, self.key, self.value = (made(config.width, (number, config.head_dim)) for number in heads)
        self.output = made(
            (config.num_heads, config.head_dim), config.width, axis=(-2, -1), kernel_init=branch_init(config)
        )
        self.window, self.is_mixed_again = config.window, config.remat == "attention"

    def __call__(self, x: jax.Array, angles: Angles | None) -> jax.Array:
        """From (B, T, width) to the same; `angles` turn queries and keys."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        if angles is not None:
            query, key = (cheap(rotate)(heads, *angles) for heads in (query, key))
        query, key, value = named(query, "queries"), named(key, "keys"), named(value, "values")
        mix = functools.partial(attention, causal=True, window=self.window, split=ruled_spec("queries"))
        mixed = (cheap(mix) if self.is_mixed_again else mix)(query, key, value)
        return self.output(named(mixed, "attention"))


def branch_init(config: TransformerConfig) -> nnx.Initializer:
    """The initial kernel of a branch's last projection: so small that the branches of all layers add up to order one.

    Source: Radford et al. (2019), Language models are unsupervised multitask learners, section 2.3.
    """
    return nnx.initializers.variance_scaling(1 / (2 * config.num_layers), "fan_in", "truncated_normal")
