"""One layer: attention and a feed-forward network, each a branch of the residual stream."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from outlay.core.constrain import constrain
from outlay.models.transformer.attention import Attention, branch_init
from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.norm import Norm, cheap
from outlay.models.transformer.rotary import Angles

ACTIVATIONS = {"silu": nnx.silu, "gelu": nnx.gelu, "relu": nnx.relu}


class FeedForward(nnx.Module):
    """`down(f(up(x)))`, or with a gate `down(f(gate(x)) * up(x))`. Source: Shazeer (2020), arXiv:2002.05202.

    Args:
        config: the dims, and f, its activation.
        rngs: source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        made = functools.partial(
            nnx.Linear,
            use_bias=config.biases,
            dtype=jnp.dtype(config.dtype),
            param_dtype=jnp.dtype(config.param_dtype),
            rngs=rngs,
        )
        self.gate = made(config.width, config.hidden) if config.gated else None
        self.up = made(config.width, config.hidden)
        self.down = made(config.hidden, config.width, kernel_init=branch_init(config))
        self.activation = config.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """From (B, T, width) to the same."""
        activate, up = ACTIVATIONS[self.activation], checkpoint_name(self.up(x), "up")
        if self.gate is None:
            return self.down(cheap(activate)(up))
        gate = checkpoint_name(self.gate(x), "gate")
        return self.down(cheap(lambda gate, up: activate(gate) * up)(gate, up))


class Block(nnx.Module):
    """A pre-norm transformer layer.

    Layouts can speak of three values, all (B, T, width): `residual`, the stream between branches, `branch_input`, what
    enters a branch, and `branch_output`, what it adds to the stream. To split the first along T and the other two not
    is sequence parallelism.

    Args:
        config: the dims.
        rngs: source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.attention_norm, self.feed_forward_norm = Norm(config), Norm(config)
        self.attention = Attention(config, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)

    def __call__(self, x: jax.Array, angles: Angles | None) -> jax.Array:
        """From (B, T, width) to the same; `angles` turn queries and keys."""
        x = residual(x + branch_output(self.attention(branch_input(self.attention_norm(x)), angles)))
        return residual(x + branch_output(self.feed_forward(branch_input(self.feed_forward_norm(x)))))


def residual(x: jax.Array) -> jax.Array:
    """The residual stream (B, T, width), by the name that layouts know it by."""
    return _named(x, "residual")


def branch_input(x: jax.Array) -> jax.Array:
    """What enters a branch or the head (B, T, width), by the name that layouts know it by."""
    return _named(x, "branch_input")


def branch_output(x: jax.Array) -> jax.Array:
    """What a branch or the embedding adds to the stream (B, T, width), by the name that layouts know it by."""
    return _named(x, "branch_output")


def _named(x: jax.Array, name: str) -> jax.Array:
    return checkpoint_name(constrain(x, name, optional=True), name)
