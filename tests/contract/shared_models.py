"""NNX models whose objects stand at several places, each with the step that its owner would put under `nnx.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
WIDTH = 8


class Tied(nnx.Module):
    """One layer and one embedding, each used twice; a bias that is also in a list."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(WIDTH, WIDTH, rngs=rngs)
        self.first = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.head = self.embed
        self.blocks = nnx.List([self.first, nnx.Linear(WIDTH, WIDTH, rngs=rngs), self.first])
        self.biases: Any = nnx.List([self.first.bias])

    def __call__(self, x: Any) -> Any:
        x = x @ self.embed.embedding[...]
        for block in self.blocks:
            x = nnx.tanh(block(x))
        return self.head.attend(x) + self.biases[0][None]


class Regular(nnx.Module):
    """BatchNorm, and two dropouts that draw from one generator."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up, self.norm = nnx.Linear(WIDTH, WIDTH, rngs=rngs), nnx.BatchNorm(WIDTH, rngs=rngs)
        self.drops = nnx.List([Drop(rngs), Drop(rngs)])
        self.library = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.norm(self.up(x))
        for drop in self.drops:
            x = drop(x)
        return self.library(x)


class Drop(nnx.Module):
    """A dropout that keeps the generator that it is given, as Flax's own examples do."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.rngs = rngs

    def __call__(self, x: Any) -> Any:
        return x * jax.random.bernoulli(self.rngs.dropout(), 0.8, x.shape)


class Stacked(nnx.Module):
    """Layers of `nnx.vmap`, scanned over, and a generator that is forked."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        make = nnx.vmap(lambda rngs: nnx.Linear(WIDTH, WIDTH, rngs=rngs))
        self.layers = make(rngs.split(3))
        self.drop = nnx.Dropout(0.2, rngs=rngs.fork())

    def __call__(self, x: Any) -> Any:
        def one(x: Any, layer: Any) -> Any:
            return nnx.tanh(layer(x))

        return self.drop(nnx.scan(one, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.layers))


class Child(nnx.Module):
    """Refers to the module that holds it."""

    def __init__(self, parent: Any, rngs: nnx.Rngs) -> None:
        self.parent, self.kernel = parent, nnx.Param(jax.random.normal(rngs.params(), (WIDTH, WIDTH)) / WIDTH)

    def __call__(self, x: Any) -> Any:
        return x @ self.kernel[...] * self.parent.scale[None]


class Parent(nnx.Module):
    """A cycle: its child refers to it."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.scale = nnx.Param(jnp.ones(WIDTH))
        self.child = Child(self, rngs)

    def __call__(self, x: Any) -> Any:
        return self.child(x)


MODELS = {"tied": Tied, "regular": Regular, "stacked": Stacked, "cycle": Parent}
OPTIMIZERS = {"sgd": optax.sgd(0.1), "adam": optax.adam(1e-2)}


def separate(model: str, optimizer: str) -> tuple[Callable[..., Any], Callable[..., Any], tuple[str, ...]]:
    """Return init, the owner's step, and the names of the parts, of a model with an `nnx.Optimizer` and metrics."""

    def init(key: Any) -> Any:
        made = MODELS[model](nnx.Rngs(params=key, dropout=jax.random.key(1)))
        metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
        return made, nnx.Optimizer(made, OPTIMIZERS[optimizer], wrt=nnx.Param), metrics

    def step(model: Any, optimizer: Any, metrics: Any, x: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - 1) ** 2))(model)
        optimizer.update(model, grads)
        metrics.update(loss=loss)
        return {"loss": loss, "mean": metrics.compute()["loss"]}

    return init, step, ("model", "optimizer", "metrics")


def together(model: str, optimizer: str) -> tuple[Callable[..., Any], Callable[..., Any], tuple[str, ...]]:
    """Return the same of a `ModelAndOptimizer`, whose model is a part of its own as well."""

    def init(key: Any) -> Any:
        made = MODELS[model](nnx.Rngs(params=key, dropout=jax.random.key(1)))
        return made, nnx.ModelAndOptimizer(made, OPTIMIZERS[optimizer])

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        assert optimizer.model is model  # under any jit
        loss, grads = nnx.value_and_grad(lambda model: jnp.mean((model(x) - 1) ** 2))(model)
        optimizer.update(grads)
        return {"loss": loss}

    return init, step, ("model", "optimizer")


def losses_of_nnx(init: Callable[..., Any], step: Callable[..., Any], num_steps: int) -> list[float]:
    """Return the losses of the owner's loop, under `nnx.jit`."""
    jitted, parts = nnx.jit(step), init(jax.random.key(0))
    return [float(jitted(*parts, X)["loss"]) for _ in range(num_steps)]


def as_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return the owner's step as one that returns its parts, as the guide says."""
    return lambda *parts_and_batch: (*parts_and_batch[:-1], step(*parts_and_batch))
