"""Acceptance, document 1: sharded computation; arrays split in two dims, and an elementwise step."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from tests.contract.placed_as_planned import blocks, num_collectives

import outlay

X = np.arange(32, dtype=np.float32).reshape(4, 8)


def test_s1_02_one_device_holds_one_block() -> None:
    mesh = outlay.mesh(x=2, y=4)
    x = outlay.put(X, outlay.Layout([outlay.on(0)]).plan(X, mesh), mesh)
    assert blocks(x) == [[0]]


def test_s1_04_every_arrays_sharding_is_in_the_plan() -> None:
    plan = outlay.Layout([("x", P("x", "y")), ("y", outlay.replicate())]).plan({"x": X, "y": X}, outlay.mesh(x=2, y=4))
    assert [(leaf.path, leaf.spec, leaf.local_shape) for leaf in plan] == [
        ("x", P("x", "y"), (2, 2)),
        ("y", P(), (4, 8)),
    ]


def test_s1_05_06_blocks_over_two_axes_keep_the_values() -> None:
    mesh = outlay.mesh(x=2, y=4)
    plan = outlay.Layout([("**", P("x", "y"))]).plan(X, mesh)
    x = outlay.put(X, plan, mesh)
    assert blocks(x) == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert x.sharding.shard_shape(x.shape) == (2, 2)
    np.testing.assert_array_equal(x, X)
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, X[shard.index])


def test_s1_07_an_elementwise_step_keeps_the_sharding_without_collectives() -> None:
    def step(state, batch):
        return state, 2 * jnp.sin(state) + 1

    mesh = outlay.mesh(x=2, y=4)
    layout = outlay.Layout([("**", P("x", "y")), ("batch.**", outlay.replicate())])
    program = outlay.program(step, lambda key: jnp.asarray(X), np.zeros(1), layout=layout, mesh=mesh)
    state = outlay.put(X, program.plan, mesh)
    _, y = program(state, np.zeros(1))
    assert blocks(y) == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert y.sharding.spec == P("x", "y")
    assert num_collectives(program) == 0
    np.testing.assert_allclose(y, 2 * np.sin(X) + 1, rtol=1e-6, atol=1e-6)
