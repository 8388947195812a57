"""What the training benchmarks train, in JAX: a 4 x 1024 MLP under Adam, batch 64, mean squared error."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

WIDTH, DEPTH, BATCH = 1024, 4, 64
optimizer = optax.adam(1e-3)


def init_params(key):
    keys = jax.random.split(key, DEPTH)
    return [{"kernel": jax.random.normal(k, (WIDTH, WIDTH)) / 32, "bias": jnp.zeros(WIDTH)} for k in keys]


def layer(params, x):
    return jnp.tanh(x @ params["kernel"] + params["bias"])


def losses(params, batch, keys):
    """Return the loss of each sample, (B,), as `outlay.train_step` takes it."""
    x = batch["x"]
    for layer_params in params:
        x = layer(layer_params, x)
    return jnp.mean((x - batch["y"]) ** 2, axis=-1), {}


def example_batch():
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal((BATCH, WIDTH), dtype=np.float32) for name in "xy"}


def stepping(program, state, batch):
    """Return a function that takes some steps, waits for the last, and returns its loss."""

    def run(num_steps):
        nonlocal state
        for _ in range(num_steps):
            state, metrics = program(state, batch)
            loss = float(metrics["loss"])
        jax.block_until_ready(state)
        return loss

    return run
