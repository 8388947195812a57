"""One layer: attention and a gated feed-forward network, each a branch of the residual stream."""

from __future__ import annotations

import jax
from flax import nnx

from outlay.core.constrain import constrain
from outlay.models.transformer.attention import Attention, branch_init
from outlay.models.transformer.config import TransformerConfig


class FeedForward(nnx.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`. Source: Shazeer (2020), arXiv:2002.05202.

    Args:
        config: the dims.
        rngs: source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        def inward() -> nnx.Linear:
            return nnx.Linear(config.width, config.hidden, use_bias=False, dtype=config.dtype, rngs=rngs)

        self.gate, self.up = inward(), inward()
        self.down = nnx.Linear(
            config.hidden,
            config.width,
            use_bias=False,
            kernel_init=branch_init(config),
            dtype=config.dtype,
            rngs=rngs,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """From (B, T, width) to the same."""
        return self.down(nnx.silu(self.gate(x)) * self.up(x))


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
        self.attention_norm, self.feed_forward_norm = norm(config, rngs), norm(config, rngs)
        self.attention = Attention(config, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)

    def __call__(self, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
        """From (B, T, width) to the same; `cos` and `sin` as from `rotation`."""
        x = residual(x + branch_output(self.attention(branch_input(self.attention_norm(x)), cos, sin)))
        return residual(x + branch_output(self.feed_forward(branch_input(self.feed_forward_norm(x)))))


def norm(config: TransformerConfig, rngs: nnx.Rngs) -> nnx.RMSNorm:
    """Root mean square normalisation. Source: Zhang and Sennrich (2019), arXiv:1910.07467."""
    return nnx.RMSNorm(config.width, epsilon=1e-5, dtype=config.dtype, rngs=rngs)


def residual(x: jax.Array) -> jax.Array:
    """The residual stream (B, T, width), by the name that layouts know it by."""
    return constrain(x, "residual", optional=True)


def branch_input(x: jax.Array) -> jax.Array:
    """What enters a branch or the head (B, T, width), by the name that layouts know it by."""
    return constrain(x, "branch_input", optional=True)


def branch_output(x: jax.Array) -> jax.Array:
    """What a branch or the embedding adds to the stream (B, T, width), by the name that layouts know it by."""
    return constrain(x, "branch_output", optional=True)
