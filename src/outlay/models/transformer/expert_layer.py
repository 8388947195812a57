"""A transformer layer whose feed-forward layer is a mixture of experts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from outlay.models.experts.mixture import experts
from outlay.models.experts.routing_facts import Routing
from outlay.models.transformer.expert_config import ExpertConfig
from outlay.models.transformer.layer import (
    Angles,
    Block,
    FeedForward,
    branch_input,
    branch_output,
    layer_input,
    residual,
)


class ExpertBlock(Block):
    """A pre-norm transformer layer with a mixture of experts; it also returns the routing of each sequence.

    Args:
        config: the configuration.
        rngs: the source of the initial parameters.
    """

    def feed_forward_of(self, config: Any, rngs: nnx.Rngs) -> Any:
        """Return the mixture."""
        return Mixture(config, rngs=rngs)

    def __call__(self, x: jax.Array, angles: Angles | None) -> Any:
        """Apply it to activations (B, T, width); `angles` rotate queries and keys."""
        x = layer_input(x)
        x = residual(x + branch_output(self.attention(branch_input(self.attention_norm(x)), angles), "output"))
        mixed, routing = self.feed_forward(branch_input(self.feed_forward_norm(x)))
        return residual(x + branch_output(mixed)), routing


class Mixture(nnx.Module):
    """Stacked feed-forward layers, a few for each token, and perhaps one more for all tokens.

    Args:
        config: the configuration.
        rngs: the source of the initial parameters.
    """

    def __init__(self, config: ExpertConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        param_dtype = jnp.dtype(config.param_dtype)
        self.router = nnx.Linear(
            config.width, config.num_experts, use_bias=False, dtype=jnp.float32, param_dtype=param_dtype, rngs=rngs
        )
        make = nnx.vmap(lambda key: FeedForward(config, rngs=nnx.Rngs(key)))
        self.experts = make(jax.random.split(rngs(), config.num_experts))
        shared = dataclasses.replace(config, hidden=config.shared_hidden) if config.shared_hidden else None
        self.shared = None if shared is None else FeedForward(shared, rngs=rngs)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, Routing]:
        """Map (B, T, width) to the same shape, and return the routing of each sequence."""
        config = self.config
        definition, stacks = nnx.split(self.experts)
        mixed, routing = experts(
            lambda params, tokens: checkpoint_name(nnx.merge(definition, params)(tokens), "down"),
            stacks,
            x,
            self.router(x),
            top_k=config.top_k,
            gates=config.gates,
            scale=config.scale,
            capacity_factor=config.capacity_factor,
            max_dropped=config.max_dropped,
        )
        return mixed if self.shared is None else mixed + self.shared(x), routing
