"""A recipe of your own: fit a line, with every choice in one function."""

import jax.numpy as jnp
import numpy as np
import optax

import outlay


def loss(params, batch, keys):
    """One loss per sample, and no further metrics."""
    return (batch["x"] @ params["w"] - batch["y"]) ** 2, {}


def recipe():
    x = np.random.default_rng(0).normal(size=(256, 8)).astype(np.float32)
    samples = {"x": x, "y": x.sum(axis=1)}
    return outlay.Recipe.training(
        "line",
        init_params=lambda key: {"w": jnp.zeros(8)},
        loss=loss,
        optimizer=optax.adam(1e-1),
        train=samples,
        test=samples,
        batch_size=64,
        steps=100,
    )
