"""A transformer as pure functions for training, its cross-entropy, and sampling."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from outlay.models.transformer.adapters import Adapter
from outlay.models.transformer.config import TransformerConfig
from outlay.models.transformer.model import Transformer


def language_model(
    config: TransformerConfig, token: str = "byte"
) -> tuple[Callable[[jax.Array], Any], Callable[..., Any]]:
    """Return a `Transformer` as two pure functions for training.

    Batches are dictionaries of `tokens` (B, T), of any integer type. All T tokens are predicted, the first from
    nothing.

    Args:
        config: the configuration.
        token: what a token is, for the name of the metric.

    Returns:
        `init_params(key) -> params`, and `loss(params, batch, keys) -> (losses, {"bits_per_byte": ...})` for
        `outlay.train_step`. A loss is the mean over the tokens of a sequence, in nats. There is no dropout, so keys are
        ignored.

    Example:
        >>> from outlay.models.transformer.published import MODELS
        >>> init_params, loss = language_model(MODELS["tiny"].config)
        >>> params, batch = jax.eval_shape(init_params, jax.random.key(0)), {"tokens": np.zeros((2, 16), np.uint8)}
        >>> losses, metrics = jax.eval_shape(loss, params, batch, None)
        >>> losses.shape, metrics["bits_per_byte"].shape
        ((2,), (2,))
    """
    definition = definition_of(config)

    def init_params(key: jax.Array) -> Any:
        return nnx.state(Transformer(config, rngs=nnx.Rngs(key)), nnx.Param)

    def loss(params: Any, batch: Any, keys: jax.Array | None) -> tuple[jax.Array, dict[str, jax.Array]]:
        losses = _losses(nnx.merge(definition, params), batch["tokens"])
        return losses, {f"bits_per_{token}": losses / math.log(2)}

    return init_params, loss


def adapted_language_model(
    config: TransformerConfig, token: str = "byte"
) -> tuple[Callable[[jax.Array], Any], Callable[..., Any]]:
    """Return the two functions for training adapters only; the frozen model is the model state.

    So the model has no gradients and no optimizer moments, and may be quantized.

    Args:
        config: the configuration, with an `adapter_rank`.
        token: as for `language_model`.

    Returns:
        `init(key) -> (adapters, model)` and `loss(adapters, model, batch, keys)`, for `train_step(model_state=True)`.

    Example:
        >>> config = TransformerConfig(256, 16, 2, 2, 2, 8, 32, dtype="float32", adapter_rank=2, is_int8=True)
        >>> init, loss = adapted_language_model(config)
        >>> adapters, model = jax.eval_shape(init, jax.random.key(0))
        >>> adapters["layers"]["attention"]["query"]["down"].shape
        (2, 16, 2)
        >>> model["layers"]["attention"]["query"]["kernel"].dtype
        dtype('int8')
    """
    definition = definition_of(config)

    def init(key: jax.Array) -> tuple[Any, Any]:
        _, adapters, model = nnx.split(Transformer(config, rngs=nnx.Rngs(key)), Adapter, nnx.Param)
        return adapters, model

    def loss(adapters: Any, model: Any, batch: Any, keys: jax.Array | None) -> tuple[jax.Array, dict[str, Any], Any]:
        losses = _losses(nnx.merge(definition, adapters, model), batch["tokens"])
        return losses, {f"bits_per_{token}": losses / math.log(2)}, model

    return init, loss


@functools.cache  # else every step, and every continuation of a prompt, would trace all initializers once more
def definition_of(config: TransformerConfig) -> Any:
    """Return the transformer's graph definition, for `nnx.merge`; nothing is allocated."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    return nnx.graphdef(nnx.eval_shape(lambda key: Transformer(config, rngs=nnx.Rngs(key)), key))


def _losses(model: Transformer, tokens: jax.Array) -> jax.Array:
    """Compute the mean loss of each sequence, (B,)."""
    # Once, outside of what the backward pass recomputes: there some compilers of TPUs have no conversion of bytes.
    tokens = tokens.astype(jnp.int32)
    table = model.embedding.table()
    return chunked_loss(model.hidden(tokens, table), model.head_kernel(table), tokens, model.config.loss_chunks)


def chunked_loss(hidden: jax.Array, kernel: jax.Array, tokens: jax.Array, num_chunks: int) -> jax.Array:
    """Return the mean negative log-probability of each sequence's tokens (B,), in nats, float32.

    With several chunks, only the logits of one chunk are in memory at a time. The backward pass recomputes them; with a
    large vocabulary, the logits and their gradient would otherwise be the largest arrays of a step.

    Args:
        hidden: the input of the head, (B, T, width).
        kernel: the kernel of the head, (width, vocabulary).
        tokens: (B, T) of any integer type.
        num_chunks: the number of chunks of a sequence; it must divide T.

    Example:
        >>> one, four = (chunked_loss(jnp.ones((2, 8, 3)), jnp.eye(3), jnp.zeros((2, 8), int), n) for n in (1, 4))
        >>> np.allclose(one, four)
        True
    """
    if num_chunks == 1:
        return cross_entropy(hidden @ kernel, tokens).mean(axis=1)
    size = tokens.shape[1] // num_chunks

    @functools.partial(jax.checkpoint, prevent_cse=False)  # inside a scan, XLA cannot merge the two passes
    def add(so_far: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        own_hidden, own_tokens = (jax.lax.dynamic_slice_in_dim(x, start, size, axis=1) for x in (hidden, tokens))
        return so_far + cross_entropy(own_hidden @ kernel, own_tokens).sum(axis=1), None

    total, _ = jax.lax.scan(add, jnp.zeros(len(tokens)), size * jnp.arange(num_chunks))
    return total / tokens.shape[1]


@jax.checkpoint  # saves the logits in their own dtype, and recomputes their float32 softmax, which is twice as large
def cross_entropy(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return the negative log-probability of each token, in nats, float32.

    Args:
        logits: (B, T, vocabulary) of any float type; they never exist whole in float32.
        tokens: (B, T) of any integer type.

    Example:
        >>> cross_entropy(jnp.zeros((1, 1, 4)), jnp.array([[2]])).tolist() == [[np.log(np.float32(4))]]
        True
    """
    exact = logits.astype(jnp.float32)
    # Compare instead of indexing: with a split vocabulary, each device sums its own part, and nothing is gathered.
    vocabulary = jnp.arange(logits.shape[-1])[None, None]
    own = jnp.sum(jnp.where(vocabulary == tokens[..., None], exact, 0.0), axis=-1)
    return jax.nn.logsumexp(exact, axis=-1) - own


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
    """Continue a prompt. Each token depends on the last `window - 1` tokens; there is no key-value cache.

    Args:
        config: the configuration.
        params: the parameters, as returned by `init_params` of `language_model`.
        prompt: (n,) of any integer type, at least one token.
        key: a PRNG key.
        num_tokens: the number of tokens to add.
        window: the context length, as in training.
        temperature: the divisor of the logits; below 1, likely tokens become more likely.

    Returns:
        The prompt and its continuation, (n + num_tokens,) int32.

    Example:
        >>> from outlay.models.transformer.language_model import language_model
        >>> from outlay.models.transformer.published import MODELS
        >>> tiny = MODELS["tiny"].config
        >>> params = jax.jit(language_model(tiny)[0])(jax.random.key(0))
        >>> tokens = sample_tokens(
        ...     tiny, params, jnp.array([100, 101]), jax.random.key(1), num_tokens=3, window=4)
        >>> tokens.shape, tokens[:2].tolist()
        ((5,), [100, 101])
    """
    model = nnx.merge(definition_of(config), params)
    table = model.embedding.table()
    head = model.head_kernel(table)
    num_given, num_all = len(prompt), len(prompt) + num_tokens
    # At least one window long; causality hides whatever follows the token to draw.
    text = jnp.zeros(max(num_all, window), jnp.int32).at[:num_given].set(prompt.astype(jnp.int32))

    def draw(position: jax.Array, text: jax.Array) -> jax.Array:
        start = jnp.maximum(0, position - window + 1)
        hidden = model.hidden(jax.lax.dynamic_slice(text, (start,), (window,))[None], table)
        logits = jax.lax.dynamic_index_in_dim(hidden[0], position - start, keepdims=False) @ head
        drawn = jax.random.categorical(jax.random.fold_in(key, position), logits.astype(jnp.float32) / temperature)
        return text.at[position].set(drawn.astype(jnp.int32))

    return jax.lax.fori_loop(num_given, num_all, draw, text)[:num_all]
