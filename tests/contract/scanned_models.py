"""Models of several libraries that scan over their layers, none written for a pipeline: init and a loss per sample."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

NUM_LAYERS, NUM_TOKENS, WIDTH, VOCABULARY = 4, 6, 8, 11

Model = tuple[Callable[[jax.Array], Any], Callable[[Any, Any, Any], Any], str]
"""Init, loss, and the pattern of the stacked leaves."""


def cross_entropy(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return the loss of each sample."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1).mean((-1, -2))


def plain() -> Model:
    """Plain JAX: casts, remat, carried key and counter, a mask of the batch, keys per sample, outputs of layers."""

    def init(key: jax.Array) -> Any:
        shapes = (
            (NUM_LAYERS, WIDTH, 2 * WIDTH),
            (NUM_LAYERS, 2 * WIDTH, WIDTH),
            (VOCABULARY, WIDTH),
            (WIDTH, VOCABULARY),
        )
        draw = np.random.default_rng(0).normal  # by JAX, it took XLA longer than the step
        up, down, table, head = (jnp.asarray(draw(size=shape), "float32") for shape in shapes)
        return {"table": table, "layers": {"up": 0.3 * up, "down": 0.3 * down}, "head": head}

    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        mask = (batch["tokens"] > 0)[..., None]
        of_layers = jax.vmap(lambda key: jax.random.split(key, NUM_LAYERS), out_axes=1)(keys)

        @jax.checkpoint
        def layer(carry: Any, of_layer: Any) -> Any:
            x, number, key = carry
            weights, keys = of_layer
            key, own = jax.random.split(key)
            y = jnp.tanh(x @ weights["up"]) @ weights["down"] + 0.1 * jax.random.normal(own, (1, 1, WIDTH))
            stays = jax.vmap(lambda key: jax.random.bernoulli(key, 0.9, (NUM_TOKENS, WIDTH)))(keys)
            y = jnp.where(stays & mask, y / 0.9, 0.0) * (1 + 0.1 * number)
            return (x + y, number + 1, key), (y**2).mean((-1, -2))

        cast = jax.tree.map(lambda leaf: jax.lax.optimization_barrier(leaf * 0.5), params["layers"])
        start = (params["table"][batch["tokens"]], 0, jax.random.key(7))
        (x, _, _), sizes = jax.lax.scan(layer, start, (cast, of_layers))
        return cross_entropy(x @ params["head"], batch["tokens"]) + 0.1 * sizes.sum(0), {}

    return init, loss, "params.layers.*"


class NnxBlock(nnx.Module):
    """A feed-forward layer with dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs), nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Compute the layer."""
        return x + self.down(nnx.gelu(self.up(self.norm(x))))


class NnxModel(nnx.Module):
    """Layers made by `nnx.vmap` and run by `nnx.scan`."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.table = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.layers = nnx.vmap(lambda key: NnxBlock(nnx.Rngs(key)))(jax.random.split(rngs(), NUM_LAYERS))
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits."""

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        @nnx.remat
        def run(x: jax.Array, block: NnxBlock) -> jax.Array:
            return block(x)

        return self.head(run(self.table(tokens), self.layers))


class NnxAttention(nnx.Module):
    """An attention layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Compute the layer."""
        return x + self.attention(self.norm(x), mask=mask)


class NnxScannedStates(nnx.Module):
    """Attention layers that `jax.lax.scan` runs over their states, split from their definition."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.table = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.layers = nnx.vmap(lambda key: NnxAttention(nnx.Rngs(key)))(jax.random.split(rngs(), NUM_LAYERS))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits."""
        definition, states = nnx.split(self.layers)
        mask = nnx.make_causal_mask(tokens)
        x, _ = jax.lax.scan(lambda x, state: (nnx.merge(definition, state)(x, mask), None), self.table(tokens), states)
        return self.table.attend(x)


def of_nnx(made: type[nnx.Module]) -> Model:
    """Return a model of NNX by its class."""

    def loss(model: Any, batch: Any, keys: jax.Array) -> Any:
        return cross_entropy(model(batch["tokens"]), batch["tokens"]), {}

    return lambda key: made(nnx.Rngs(key)), loss, "params.layers.**"


class LinenBlock(nn.Module):
    """A feed-forward layer for `nn.scan`."""

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        """Compute the layer."""
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x)))), None


class LinenModel(nn.Module):
    """Feed-forward layers under remat and scan."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits."""
        x = nn.Embed(VOCABULARY, WIDTH)(tokens)
        blocks = nn.scan(
            nn.remat(LinenBlock), variable_axes={"params": 0}, split_rngs={"params": True}, length=NUM_LAYERS
        )
        x, _ = blocks(name="blocks")(x, None)
        return nn.Dense(VOCABULARY)(x)


class LinenAttention(nn.Module):
    """An attention layer with dropout, for one sample."""

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute the layer, and how large its output is."""
        y = nn.MultiHeadDotProductAttention(2, deterministic=True)(nn.RMSNorm()(x), mask=mask)
        y = nn.Dropout(0.2, deterministic=False)(y)
        return x + y, (y**2).mean()


class LinenOfOneSample(nn.Module):
    """Attention layers for one sample, under `jax.vmap` over the batch: dropout draws from each sample's own key."""

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits."""
        x = nn.Embed(VOCABULARY, WIDTH)(tokens)
        blocks = nn.scan(
            LinenAttention,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=NUM_LAYERS,
        )
        x, sizes = blocks(name="blocks")(x, nn.make_causal_mask(tokens))
        return nn.Dense(VOCABULARY)(x) + sizes.sum()


def linen() -> Model:
    """Return the first model of Linen."""

    def init(key: jax.Array) -> Any:
        return LinenModel().init(key, jnp.zeros((2, NUM_TOKENS), jnp.int32))

    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        return cross_entropy(LinenModel().apply(params, batch["tokens"]), batch["tokens"]), {}

    return init, loss, "params.params.blocks.**"


def linen_of_one_sample() -> Model:
    """Return the second model of Linen."""

    def init(key: jax.Array) -> Any:
        return LinenOfOneSample().init({"params": key, "dropout": key}, jnp.zeros((NUM_TOKENS,), jnp.int32))

    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        logits = jax.vmap(lambda tokens, key: LinenOfOneSample().apply(params, tokens, rngs={"dropout": key}))(
            batch["tokens"], keys
        )
        return cross_entropy(logits, batch["tokens"]), {}

    return init, loss, "params.params.blocks.**"


class EquinoxMlp(eqx.Module):
    """A stack of perceptrons, for one sample."""

    table: jax.Array
    layers: eqx.nn.MLP

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.table = jax.random.normal(first, (VOCABULARY, WIDTH))
        make = eqx.filter_vmap(lambda key: eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, key=key))
        self.layers = make(jax.random.split(second, NUM_LAYERS))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits."""
        arrays, others = eqx.partition(self.layers, eqx.is_array)

        def layer(x: jax.Array, of_layer: Any) -> tuple[jax.Array, None]:
            return x + jax.vmap(eqx.combine(of_layer, others))(x), None

        x, _ = jax.lax.scan(layer, self.table[tokens], arrays)
        return x @ self.table.T


class EquinoxBlock(eqx.Module):
    """An attention layer with dropout, for one sample."""

    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    dropout: eqx.nn.Dropout

    def __init__(self, key: jax.Array) -> None:
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, key=key)
        self.norm, self.dropout = eqx.nn.LayerNorm(WIDTH), eqx.nn.Dropout(0.2)

    def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
        """Compute the layer."""
        y = jax.vmap(self.norm)(x)
        return x + self.dropout(self.attention(y, y, y), key=key)


class EquinoxAttention(eqx.Module):
    """Attention layers with a filtered checkpoint, each with a key of its own, for one sample."""

    table: jax.Array
    layers: EquinoxBlock

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.table = jax.random.normal(first, (VOCABULARY, WIDTH))
        self.layers = eqx.filter_vmap(EquinoxBlock)(jax.random.split(second, NUM_LAYERS))

    def __call__(self, tokens: jax.Array, key: jax.Array) -> jax.Array:
        """Return the logits."""
        arrays, others = eqx.partition(self.layers, eqx.is_array)

        @functools.partial(eqx.filter_checkpoint)
        def layer(x: jax.Array, of_layer: Any) -> tuple[jax.Array, None]:
            block, key = of_layer
            return eqx.combine(block, others)(x, key), None

        x, _ = jax.lax.scan(layer, self.table[tokens], (arrays, jax.random.split(key, NUM_LAYERS)))
        return x @ self.table.T


def equinox() -> Model:
    """Return the first model of Equinox."""

    def loss(model: Any, batch: Any, keys: jax.Array) -> Any:
        return cross_entropy(jax.vmap(model)(batch["tokens"]), batch["tokens"]), {}

    return EquinoxMlp, loss, "params.layers.**"


def equinox_attention() -> Model:
    """Return the second model of Equinox."""

    def loss(model: Any, batch: Any, keys: jax.Array) -> Any:
        return cross_entropy(jax.vmap(model)(batch["tokens"], keys), batch["tokens"]), {}

    return EquinoxAttention, loss, "params.layers.**"


MODELS: dict[str, Callable[[], Model]] = {
    "plain": plain,
    "nnx.scan": lambda: of_nnx(NnxModel),
    "nnx states": lambda: of_nnx(NnxScannedStates),
    "nn.scan": linen,
    "nn.scan of one sample": linen_of_one_sample,
    "equinox": equinox,
    "equinox attention": equinox_attention,
}
