"""The tables of token vectors, which may serve as the head too, and of learned positions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from outlay.core.constrain import constrain
from outlay.models.transformer.config import TransformerConfig


class Embedding(nnx.Module):
    """A vector for each token.

    Layouts can speak of the table where it is read as `table`, (vocabulary, width). Split along the vocabulary, each
    device reads the tokens that it has; split in another way, it is better gathered first.

    Args:
        config: the dims.
        rngs: source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.dtype = config.dtype
        # A tied table is a kernel with `width` inputs too, and logits should start at order one.
        scale = config.width**-0.5 if config.tied else 1.0
        shape = (config.vocabulary, config.width)
        vectors = scale * jax.random.normal(rngs.params(), shape)
        self.embedding = nnx.Param(vectors.astype(config.param_dtype))

    def table(self) -> jax.Array:
        """The vectors in the model's dtype, (vocabulary, width), to be read once for all uses."""
        # The barrier keeps the cast apart from where the table is wanted, so that it is gathered in the smaller dtype.
        cast = jax.lax.optimization_barrier(self.embedding[...].astype(self.dtype))
        return constrain(cast, "table", optional=True)


class Positions(nnx.Module):
    """A learned vector for each place in a sequence, as small as a trained one. Source: Radford et al. (2019).

    Args:
        config: the dims.
        rngs: source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.dtype = config.dtype
        vectors = 0.01 * jax.random.normal(rngs.params(), (config.num_positions, config.width))
        self.embedding = nnx.Param(vectors.astype(config.param_dtype))

    def __call__(self, num_tokens: int) -> jax.Array:
        """The vectors of the first places, (T, width), in the model's dtype."""
        return self.embedding[:num_tokens].astype(jnp.dtype(self.dtype))
