"""Models of several libraries that hold a list of layers, each with one line of Outlay: init and a loss per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx
from tests.contract.scanned_models import (
    NUM_LAYERS,
    NUM_TOKENS,
    VOCABULARY,
    WIDTH,
    EquinoxBlock,
    Model,
    NnxAttention,
    NnxBlock,
    cross_entropy,
)

import outlay


def plain() -> Model:
    """Dicts and a function: casts, remat, a mask, keys of each layer and sample, a scalar in each layer, a jit."""

    def init(key: jax.Array) -> Any:
        first, *others = jax.random.split(key, NUM_LAYERS + 1)
        layers = [
            {"w": 0.3 * jax.random.normal(key, (WIDTH, WIDTH)), "b": jnp.zeros((WIDTH,)), "scale": jnp.ones(())}
            for key in others
        ]
        return {"table": jax.random.normal(first, (VOCABULARY, WIDTH)), "layers": layers}

    @jax.checkpoint
    def layer(weights: Any, x: jax.Array, mask: jax.Array, *, keys: jax.Array) -> jax.Array:
        y = jnp.tanh(x @ weights["w"] + weights["b"]) * weights["scale"]
        stays = jax.vmap(lambda key: jax.random.bernoulli(key, 0.9, (NUM_TOKENS, WIDTH)))(keys)
        return x + jnp.where(stays & mask, y / 0.9, 0.0)

    @jax.jit
    def run(params: Any, tokens: jax.Array, keys: jax.Array) -> jax.Array:
        mask = (tokens > 0)[..., None]
        of_layers = jax.vmap(lambda key: jax.random.split(key, NUM_LAYERS), out_axes=1)(keys)
        cast = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params["layers"])
        x = outlay.layers(cast, params["table"][tokens], mask, each={"keys": of_layers}, run=layer)
        return x @ params["table"].T

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        return cross_entropy(run(params, batch["tokens"], keys), batch["tokens"]), {}

    return init, loss, "params.layers.**"


class NnxList(nnx.Module):
    """Feed-forward layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.table = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.layers = nnx.List([NnxBlock(rngs) for _ in range(NUM_LAYERS)])
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits."""
        return self.head(outlay.layers(self.layers, self.table(tokens)))


class NnxAttentionList(nnx.Module):
    """Attention layers that take a mask."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.table = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.layers = nnx.List([NnxAttention(rngs) for _ in range(NUM_LAYERS)])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits."""
        return self.table.attend(outlay.layers(self.layers, self.table(tokens), mask=nnx.make_causal_mask(tokens)))


class EquinoxList(eqx.Module):
    """Perceptrons, for one sample."""

    table: jax.Array
    layers: list[eqx.nn.MLP]

    def __init__(self, key: jax.Array) -> None:
        first, *others = jax.random.split(key, NUM_LAYERS + 1)
        self.table = jax.random.normal(first, (VOCABULARY, WIDTH))
        self.layers = [eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, key=key) for key in others]

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits."""
        x = outlay.layers(self.layers, self.table[tokens], run=lambda layer, x: x + jax.vmap(layer)(x))
        return x @ self.table.T


class EquinoxDropoutList(eqx.Module):
    """Attention layers with dropout, each with a key of its own, for one sample."""

    table: jax.Array
    layers: tuple[EquinoxBlock, ...]

    def __init__(self, key: jax.Array) -> None:
        first, *others = jax.random.split(key, NUM_LAYERS + 1)
        self.table = jax.random.normal(first, (VOCABULARY, WIDTH))
        self.layers = tuple(EquinoxBlock(key) for key in others)

    def __call__(self, tokens: jax.Array, key: jax.Array) -> jax.Array:
        """Return the logits."""
        keys = jax.random.split(key, NUM_LAYERS)
        return outlay.layers(self.layers, self.table[tokens], each={"key": keys}) @ self.table.T


def of_nnx(made: type[nnx.Module]) -> Model:
    """Return a model of NNX by its class."""

    def loss(model: Any, batch: Any, keys: Any) -> Any:
        return cross_entropy(model(batch["tokens"]), batch["tokens"]), {}

    return lambda key: made(nnx.Rngs(key)), loss, "params.layers.**"


def equinox() -> Model:
    """Return the first model of Equinox."""

    def loss(model: Any, batch: Any, keys: Any) -> Any:
        return cross_entropy(jax.vmap(model)(batch["tokens"]), batch["tokens"]), {}

    return EquinoxList, loss, "params.layers.**"


def equinox_dropout() -> Model:
    """Return the second model of Equinox."""

    def loss(model: Any, batch: Any, keys: Any) -> Any:
        return cross_entropy(jax.vmap(model)(batch["tokens"], keys), batch["tokens"]), {}

    return EquinoxDropoutList, loss, "params.layers.**"


LISTED: dict[str, Callable[[], Model]] = {
    "plain list": plain,
    "nnx list": lambda: of_nnx(NnxList),
    "nnx attention list": lambda: of_nnx(NnxAttentionList),
    "equinox list": equinox,
    "equinox dropout list": equinox_dropout,
}
