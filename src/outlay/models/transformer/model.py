"""The transformer: an embedding, layers that are stacked and scanned, and a head that gives logits."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from outlay.models.transformer.block import Block, branch_input, branch_output, norm, residual
from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.embedding import Embedding
from outlay.models.transformer.rotary import rotation


class Transformer(nnx.Module):
    """A decoder-only transformer.

    The layers' parameters are stacked: each kernel has a leading dim of `num_layers`, and one scan runs them all. So
    tracing and compiling cost the same however many layers there are.

    Args:
        config: the dims.
        rngs: source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = Embedding(config, rngs=rngs)
        make = nnx.vmap(lambda key: Block(config, rngs=nnx.Rngs(key)))
        self.layers = make(jax.random.split(rngs(), config.num_layers))
        self.norm = norm(config, rngs)
        if not config.tied:
            self.head = nnx.Linear(config.width, config.vocabulary, use_bias=False, dtype=config.dtype, rngs=rngs)

    def hidden(self, tokens: jax.Array, table: jax.Array) -> jax.Array:
        """What the head sees (B, T, width) of each position, from the tokens before it.

        Args:
            tokens: (B, T) of any integer type.
            table: `embedding.table()`.
        """
        # Shifted by one, with token 0 at the start: position t never sees token t, and all T tokens are predicted.
        before = jnp.pad(tokens.astype(jnp.int32)[:, :-1], ((0, 0), (1, 0)))
        cos, sin = rotation(tokens.shape[1], self.config.head_dim, self.config.rotary_base)
        definition, stacked = nnx.split(self.layers)

        def layer(x: jax.Array, params: nnx.State) -> tuple[jax.Array, None]:
            return nnx.merge(definition, params)(x, cos, sin), None

        if self.config.remat:
            # A scan keeps its iterations apart by itself.
            layer = functools.partial(jax.checkpoint, prevent_cse=False)(layer)
        x, _ = jax.lax.scan(layer, residual(branch_output(jnp.take(table, before, axis=0))), stacked)
        return branch_input(self.norm(x))

    def logits(self, hidden: jax.Array, table: jax.Array) -> jax.Array:
        """Logits (…, vocabulary) in the model's dtype, of what `hidden` gives (…, width)."""
        return jnp.einsum("...d,vd->...v", hidden, table) if self.config.tied else self.head(hidden)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Logits (B, T, vocabulary) of each token (B, T), from the tokens before it."""
        table = self.embedding.table()
        return self.logits(self.hidden(tokens, table), table)
