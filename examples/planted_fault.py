"""A step with the most common mistake of data parallelism, for `outlay verify` to find.

    outlay verify examples/planted_fault.py:recipe

The step is written by hand for one device's part of the batch. Its loss is the mean over the device's own samples, and
JAX sums the gradients of parameters that are the same on all devices. So the gradient is a sum of eight means: eight
times too large. The loss still decreases, as long as the learning rate is small enough.
"""

import jax
import jax.numpy as jnp
import numpy as np

import outlay

LEARNING_RATE = 1e-3


def init(key):
    return {"w": jax.random.normal(key, (16, 4)), "b": jnp.zeros(4)}


def step(state, batch):
    def loss_of(state):
        error = batch["x"] @ state["w"] + state["b"][None] - batch["y"]
        return jnp.mean(error**2)  # the fault; the fix: jax.lax.pmean(jnp.mean(error**2), "data")

    loss, grads = jax.value_and_grad(loss_of)(state)
    state = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, state, grads)
    return state, {"loss": jax.lax.pmean(loss, "data")}


def recipe():
    """Linear regression, in mode manual."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 16)).astype(np.float32)
    y = x @ rng.normal(size=(16, 4)).astype(np.float32)
    return outlay.Recipe(
        "planted_fault",
        init=init,
        step=step,
        data=outlay.TrainData({"x": x, "y": y}, batch_size=64),
        steps=100,
        layouts={"dp": outlay.data_parallel()},
        mode="manual",
    )
