"""One program over any mesh and layout: parameters, Adam's moments, a counter, typed keys, bfloat16, an empty leaf."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import outlay
from outlay.train.checkpoint.checkpoints import Checkpoints

OPTIMIZER = optax.adam(0.1)
BATCH = np.linspace(0, 1, 8, dtype=np.float32)


def init(key):
    params = {"mlp/~/linear.0": {"w": jax.random.normal(key, (16, 8)), "b": jnp.zeros(8)}}
    return {
        "params": params,
        "opt_state": OPTIMIZER.init(params),
        "keys": jax.random.split(key, 8),
        "half": jax.random.normal(key, (8, 3), jnp.bfloat16),
        "none_yet": jnp.zeros((0, 4)),
    }


def step(state, batch):
    grads = jax.tree.map(lambda x: jnp.cos(x) * batch.mean(), state["params"])
    updates, opt_state = OPTIMIZER.update(grads, state["opt_state"])
    params = optax.apply_updates(state["params"], updates)
    return {**state, "params": params, "opt_state": opt_state}, {"loss": batch.mean()}


def program(layout=None, **how):
    """The program; under FSDP over eight devices it is compiled once for all tests."""
    return under_fsdp() if layout is None and not how else arranged(layout, **how)


@functools.cache
def under_fsdp():
    return arranged(None)


def arranged(layout, *, init=init, mesh=None, **axes):
    layout = outlay.fsdp(min_size=8) + outlay.data_parallel() if layout is None else layout
    return outlay.program(
        step, init, BATCH, layout=layout, mesh=outlay.mesh(**axes or {"data": 8}) if mesh is None else mesh
    )


def trained(program, num_steps=2):
    state = program.init(jax.random.key(7))
    for _ in range(num_steps):
        state, _ = program(state, BATCH)
    return state


def saved(folder, *steps, keep=3):
    """Checkpoints of one state at these steps."""
    checkpoints, state = Checkpoints(folder, keep=keep), trained(program())
    for number in steps:
        checkpoints.save(number, state)
    checkpoints.wait()
    return checkpoints, state


def on_host(tree):
    def fetched(x):
        return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)

    return jax.tree.map(fetched, tree)


def assert_same(tree, other):
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    assert [x.dtype for x in jax.tree.leaves(tree)] == [x.dtype for x in jax.tree.leaves(other)]
    jax.tree.map(np.testing.assert_array_equal, on_host(tree), on_host(other))
