"""Draw tokens from a language model, one after the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.language_model import definition_of


def sample_tokens(
    config: TransformerConfig,
    params: Any,
    prompt: jax.Array,
    key: jax.Array,
    *,
    num_tokens: int,
    window: int,
    temperature: float = 1.0,
) -> jax.Array:
    """A prompt continued. Each token sees the last `window - 1` tokens, which are read anew for it: no cache.

    Args:
        config: the dims.
        params: the parameters, as from `language_model`.
        prompt: (n,) of any integer type, at least one token.
        key: a PRNG key.
        num_tokens: how many tokens to add.
        window: tokens in sight, as in training.
        temperature: divides the logits; below 1 the likely becomes likelier.

    Returns:
        Prompt and continuation, (n + num_tokens,) int32.

    Example:
        >>> from outlay.models.transformer.language_model import language_model
        >>> from outlay.models.transformer.published import MODELS
        >>> tiny = MODELS["tiny"].config
        >>> params = language_model(tiny)[0](jax.random.key(0))
        >>> tokens = sample_tokens(
        ...     tiny, params, jnp.array([100, 101]), jax.random.key(1), num_tokens=3, window=4)
        >>> tokens.shape, tokens[:2].tolist()
        ((5,), [100, 101])
    """
    model = nnx.merge(definition_of(config), params)
    table = model.embedding.table()
    head = model.head_kernel(table)
    num_given, num_all = len(prompt), len(prompt) + num_tokens
    # At least a window long; what follows the token to draw is not seen by it.
    text = jnp.zeros(max(num_all, window), jnp.int32).at[:num_given].set(prompt.astype(jnp.int32))

    def draw(place: jax.Array, text: jax.Array) -> jax.Array:
        start = jnp.maximum(0, place - window + 1)
        hidden = model.hidden(jax.lax.dynamic_slice(text, (start,), (window,))[None], table)
        logits = jax.lax.dynamic_index_in_dim(hidden[0], place - start, keepdims=False) @ head
        drawn = jax.random.categorical(jax.random.fold_in(key, place), logits.astype(jnp.float32) / temperature)
        return text.at[place].set(drawn.astype(jnp.int32))

    return jax.lax.fori_loop(num_given, num_all, draw, text)[:num_all]
