"""A recipe with the options that `outlay choose` varies."""

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
    return Recipe.training(
        "varied",
        init_params=lambda key: {"up": jnp.ones((width, HIDDEN)), "down": jnp.ones((HIDDEN, width))},
        loss=loss,
        optimizer=optax.adam(0.1),
        train=examples,
        test=examples,
        batch_size=batch,
        steps=2,
        accumulate=accumulate,
        layouts=layouts,
        meshes={"tp": "data=-1,model=2"},
    )
