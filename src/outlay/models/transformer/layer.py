"""A transformer layer: attention, feed-forward, norms, rotary positions, and named values."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from outlay.core.constrain import name, ruled_spec
from outlay.models.attention.dot_product import attention
from outlay.models.transformer.config import TransformerConfig, remat_of

EPSILON = 1e-5

Angles = tuple[jax.Array, jax.Array]
"""The cosines and sines returned by `rotation`."""

ACTIVATIONS = {"silu": nnx.silu, "gelu": nnx.gelu, "relu": nnx.relu}

cheap = functools.partial(jax.checkpoint, prevent_cse=False)
"""Recompute a function in the backward pass instead of saving its intermediates, which are mostly float32.

Use it for what is cheap compared with a matrix product. `prevent_cse` is off: layers run in a scan, where XLA cannot
merge the forward and the recomputed values.
"""


class Block(nnx.Module):
    """A pre-norm transformer layer.

    For sequence parallelism, a layout splits the named value `residual` along T, and `branch_input` and `branch_output`
    not.

    Args:
        config: the configuration.
        rngs: the source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.attention_norm, self.feed_forward_norm = Norm(config), Norm(config)
        self.attention = Attention(config, rngs=rngs)
        self.feed_forward = self.feed_forward_of(config, rngs)

    def feed_forward_of(self, config: TransformerConfig, rngs: nnx.Rngs) -> Any:
        """Return the layer's second branch."""
        return FeedForward(config, rngs=rngs)

    def __call__(self, x: jax.Array, angles: Angles | None) -> jax.Array:
        """Apply it to activations (B, T, width); `angles` rotate queries and keys."""
        x = layer_input(x)
        x = residual(x + branch_output(self.attention(branch_input(self.attention_norm(x)), angles), "output"))
        return residual(x + branch_output(self.feed_forward(branch_input(self.feed_forward_norm(x))), "down"))


class Attention(nnx.Module):
    """Grouped-query attention, with rotary embeddings if configured.

    Kernels have separate dims for heads and features, `(width, heads, head_dim)`, so that a layout splits whole heads
    or fails.

    Args:
        config: the configuration.
        rngs: the source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        made = _projection(config, nnx.LinearGeneral, rngs)
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.query, self.key, self.value = (made(config.width, (number, config.head_dim)) for number in heads)
        self.output = made(
            (config.num_heads, config.head_dim), config.width, axis=(-2, -1), kernel_init=branch_init(config)
        )
        self.window, self.is_mixed_again = config.window, remat_of(config.remat) == "attention"

    def __call__(self, x: jax.Array, angles: Angles | None) -> jax.Array:
        """Apply it to activations (B, T, width); `angles` rotate queries and keys."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        if angles is not None:
            query, key = (cheap(rotate)(heads, *angles) for heads in (query, key))
        query, key, value = named(query, "queries"), named(key, "keys"), named(value, "values")
        mix = functools.partial(attention, causal=True, window=self.window, split=ruled_spec("queries"))
        mixed = (cheap(mix) if self.is_mixed_again else mix)(query, key, value)
        # For layouts alone: attention names its residuals for `remat`, this value among them; it would be saved twice.
        return self.output(name(mixed, "attention"))


class FeedForward(nnx.Module):
    """The feed-forward layer: `down(f(up(x)))`, or with a gate `down(f(gate(x)) * up(x))`.

    Source: Shazeer (2020), arXiv:2002.05202.

    Args:
        config: the configuration, with the activation f.
        rngs: the source of the initial parameters.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        made = _projection(config, nnx.Linear, rngs)
        self.gate = made(config.width, config.hidden) if config.gated else None
        self.up = made(config.width, config.hidden)
        self.down = made(config.hidden, config.width, kernel_init=branch_init(config))
        self.activation = config.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (B, T, width) to the same shape."""
        activate, up = ACTIVATIONS[self.activation], named(self.up(x), "up")
        if self.gate is None:
            return self.down(cheap(activate)(up))
        gate = named(self.gate(x), "gate")
        return self.down(cheap(lambda gate, up: activate(gate) * up)(gate, up))


def branch_init(config: TransformerConfig) -> nnx.Initializer:
    """Return the initializer of a branch's last projection: so small that the branches of all layers sum to order one.

    Source: Radford et al. (2019), Language models are unsupervised multitask learners, section 2.3.
    """
    return nnx.initializers.variance_scaling(1 / (2 * config.num_layers), "fan_in", "truncated_normal")


class Norm(nnx.Module):
    """Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467) or layer normalisation.

    Args:
        config: the configuration, with the kind of norm.
    """

    def __init__(self, config: TransformerConfig) -> None:
        self.centred = config.norm == "layer"
        self.scale = nnx.Param(jnp.ones(config.width, config.param_dtype))
        self.bias = nnx.Param(jnp.zeros(config.width, config.param_dtype)) if self.centred and config.biases else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (…, width) to the same shape and dtype."""
        bias = None if self.bias is None else self.bias[...]
        return _normalised(x, self.scale[...], bias, self.centred)


@functools.partial(cheap, static_argnums=3)
def _normalised(x: jax.Array, scale: jax.Array, bias: jax.Array | None, centred: bool) -> jax.Array:
    exact = x.astype(jnp.float32)
    if centred:
        exact = exact - exact.mean(axis=-1, keepdims=True)
    size = jax.lax.rsqrt(jnp.square(exact).mean(axis=-1, keepdims=True) + EPSILON)
    normed = exact * size * _over(x, scale)
    return (normed if bias is None else normed + _over(x, bias)).astype(x.dtype)


def _over(x: jax.Array, of_features: jax.Array) -> jax.Array:
    """Expand one number per feature to the dims of `x`, in float32."""
    return jnp.expand_dims(of_features.astype(jnp.float32), range(x.ndim - 1))


def rotation(num_tokens: int, head_dim: int, base: float) -> Angles:
    """Return the cosines and sines of the angle of every position and feature pair, (T, head_dim / 2) float32 each.

    Pair i rotates by `base ** (-2 i / head_dim)` radians per token.
    Source: Su et al., RoFormer (arXiv:2104.09864), section 3.2.2.

    Args:
        num_tokens: T; positions start at 0.
        head_dim: the features of a head, even.
        base: see above.

    Example:
        >>> cos, sin = rotation(3, 4, 100.0)
        >>> angles = [[0, 0], [1, 0.1], [2, 0.2]]
        >>> np.allclose(cos, np.cos(angles)), np.allclose(sin, np.sin(angles))
        (True, True)
    """
    frequencies = base ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = jnp.arange(num_tokens, dtype=jnp.float32)[:, None] * frequencies[None]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate each pair of features, i and i + head_dim / 2, by the angle of its position, in float32.

    Args:
        x: queries or keys (B, T, heads, head_dim).
        cos: cosines (T, head_dim / 2).
        sin: sines (T, head_dim / 2).
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def named(x: jax.Array, value_name: str) -> jax.Array:
    """Name a value for layouts and `TransformerConfig.remat`; one of `remat.KEPT`."""
    return checkpoint_name(name(x, value_name), value_name)


def layer_input(x: jax.Array) -> jax.Array:
    """Name what goes into a layer (B, T, width); without a name, what a scan carries is kept on the device."""
    return named(x, "layer_input")


def residual(x: jax.Array) -> jax.Array:
    """Name the residual stream (B, T, width) between branches."""
    return named(x, "residual")


def branch_input(x: jax.Array) -> jax.Array:
    """Name the input of a branch or of the head (B, T, width).

    It is first constrained like the residual stream; otherwise the partitioner would gather the float32 value from
    before the cast.
    """
    return named(name(x, "residual"), "branch_input")


def branch_output(x: jax.Array, saved_as: str = "branch_output") -> jax.Array:
    """Name what is added to the residual stream (B, T, width); `remat` saves it split as the stream is, by its name."""
    return checkpoint_name(name(named(x, "branch_output"), "residual"), saved_as)


def _projection(config: TransformerConfig, plain: Any, rngs: nnx.Rngs) -> Any:
    """Return the constructor of a layer's projections: `plain`, or `AdaptedLinear` if the config has adapters."""
    if config.adapter_rank:
        from outlay.models.transformer.adapters import AdaptedLinear  # most models have none

        plain = functools.partial(AdaptedLinear, rank=config.adapter_rank, is_int8=config.is_int8)
    return functools.partial(
        plain,
        use_bias=config.biases,
        dtype=jnp.dtype(config.dtype),
        param_dtype=jnp.dtype(config.param_dtype),
        rngs=rngs,
    )
