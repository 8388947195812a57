"""A small training problem with everything that can go wrong in it: dropout, metrics, weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from outlay.models.classifiers import classifier
from outlay.train.step import init_state, train_step

OPTIMIZER = optax.sgd(0.5, momentum=0.9)
init_params, loss = classifier((16, 32, 4), dropout_rate=0.25)
init = init_state(init_params, OPTIMIZER)


@jax.jit
def evaluated(params, batch):
    """Losses and metrics without dropout."""
    return loss(params, batch, None)


def batch(num: int = 64, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "image": rng.normal(size=(num, 16)).astype(np.float32),
        "label": rng.integers(0, 4, num).astype(np.int32),
    }


@functools.cache
def step(accumulate: int = 1):
    """Compiled once for all tests."""
    return jax.jit(train_step(loss, OPTIMIZER, accumulate=accumulate))


def assert_same(tree, other, **tolerance) -> None:
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, **tolerance)
