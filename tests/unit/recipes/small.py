"""A recipe that runs in a second."""

import jax.numpy as jnp
import numpy as np
import optax

from outlay.recipes.recipe import Recipe


def loss(params, batch, keys):
    error = batch["x"] @ params["w"] - batch["y"]
    return error**2, {"off": jnp.abs(error)}


def line() -> Recipe:
    """Fits 32 weights to noiseless data."""
    x = np.random.default_rng(0).normal(size=(72, 32)).astype(np.float32)
    examples = {"x": x, "y": x @ np.linspace(-1, 1, 32, dtype=np.float32)}
    return Recipe.training(
        "line",
        init_params=lambda key: {"w": jnp.sin(jnp.arange(32.0))},  # XLA compiles random numbers ten times as long
        loss=loss,
        optimizer=optax.adam(0.1),
        train=examples,
        test={name: array[:21] for name, array in examples.items()},
        batch_size=16,
        steps=12,
    )
