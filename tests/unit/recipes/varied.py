"""Recipes with the options that `outlay choose` varies."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from outlay.layout.strategies import data_parallel, tensor_parallel
from outlay.recipes.recipe import Recipe, training_layouts

HIDDEN = 64


def varied(width: int = 32, batch: int = 16, remat: bool = False, accumulate: int = 1) -> Recipe:
    """Two layers."""

    def hidden(params, x):
        return jnp.tanh(x @ params["up"])

    def loss(params, batch, keys):
        inner = jax.checkpoint(hidden) if remat else hidden
        return ((inner(params, batch["x"]) @ params["down"]) ** 2).sum(-1), {}

    examples = {"x": np.ones((32, width), np.float32)}
    plain = training_layouts()
    layouts = {"dp": plain["dp"], "fsdp": plain["fsdp"]}
    layouts["tp"] = tensor_parallel(columns=["params.up"], rows=["params.down"]) + data_parallel()
    return _recipe(
        "varied",
        lambda key: {"up": jnp.ones((width, HIDDEN)), "down": jnp.ones((HIDDEN, width))},
        loss,
        examples,
        batch,
        accumulate,
        layouts=layouts,
        meshes={"tp": "data=-1,model=2"},
    )


def deep(batch: int = 32, remat: str = "none", accumulate: int = 1) -> Recipe:
    """Eight layers; each keeps two values for the backward pass, or, where it computes its products again, one."""

    def layer(x, kernel):
        return jnp.tanh(x @ kernel), None

    def loss(params, batch, keys):
        turn = jax.checkpoint(layer) if remat in ("products", "full") else layer
        return (jax.lax.scan(turn, batch["x"], params["kernel"])[0] ** 2).mean((-1, -2)), {}

    examples = {"x": np.ones((64, 256, 8), np.float32)}
    return _recipe("deep", lambda key: {"kernel": jnp.ones((8, 8, 8))}, loss, examples, batch, accumulate)


def _recipe(name, init_params, loss, examples, batch, accumulate, **layouts):
    return Recipe.training(
        name,
        init_params=init_params,
        loss=loss,
        optimizer=optax.adam(0.1),
        train=examples,
        test=examples,
        batch_size=batch,
        steps=2,
        accumulate=accumulate,
        **layouts,
    )
