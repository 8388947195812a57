"""Sharded computation; arrays split in two dims, and the same step written in three ways."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.contract.placed_as_planned import blocks, num_collectives

import outlay

X = np.arange(32, dtype=np.float32).reshape(4, 8)


def test_one_device_holds_one_block() -> None:
    mesh = outlay.mesh(x=2, y=4)
    x = outlay.arrays.put(X, outlay.Layout([outlay.layout.on(0)]).plan(X, mesh), mesh)
    assert blocks(x) == [[0]]


def test_every_arrays_sharding_is_in_the_plan() -> None:
    plan = outlay.Layout([("x", P("x", "y")), ("y", outlay.replicate())]).plan({"x": X, "y": X}, outlay.mesh(x=2, y=4))
    assert [(leaf.path, leaf.spec, leaf.local_shape) for leaf in plan] == [
        ("x", P("x", "y"), (2, 2)),
        ("y", P(), (4, 8)),
    ]


def test_blocks_over_two_axes_keep_the_values() -> None:
    mesh = outlay.mesh(x=2, y=4)
    plan = outlay.Layout([("**", P("x", "y"))]).plan(X, mesh)
    x = outlay.arrays.put(X, plan, mesh)
    assert blocks(x) == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert x.sharding.shard_shape(x.shape) == (2, 2)
    np.testing.assert_array_equal(x, X)
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, X[shard.index])


def test_an_elementwise_step_keeps_the_sharding_without_collectives() -> None:
    def step(state, batch):
        return state, 2 * jnp.sin(state) + 1

    mesh = outlay.mesh(x=2, y=4)
    layout = outlay.Layout([("**", P("x", "y")), ("batch.**", outlay.replicate())])
    program = outlay.program(step, lambda key: jnp.asarray(X), np.zeros(1), layout=layout, mesh=mesh)
    state = outlay.arrays.put(X, program.plan, mesh)
    _, y = program(state, np.zeros(1))
    assert blocks(y) == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert y.sharding.spec == P("x", "y")
    assert num_collectives(program) == 0
    np.testing.assert_allclose(y, 2 * np.sin(X) + 1, rtol=1e-6, atol=1e-6)


def on_pieces(function, *arrays, specs, out, **axes):
    """The function run by hand on each device's pieces."""
    return jax.jit(jax.shard_map(function, mesh=outlay.mesh(**axes), in_specs=specs, out_specs=out))(*arrays)


def summed_rows(layout, mesh, constrained=None):
    """A program that sums X over its rows, and what it gives."""

    def step(state, batch):
        total = state.sum(axis=0)
        return state, total if constrained is None else outlay.constrain(total, constrained)

    rules = outlay.Layout([*layout, ("batch.**", outlay.replicate())])
    program = outlay.program(step, lambda key: jnp.asarray(X), np.zeros(1), layout=rules, mesh=mesh)
    return program(outlay.arrays.put(X, program.plan, mesh), np.zeros(1))[1], program


COLUMN_SUMS = [48, 52, 56, 60, 64, 68, 72, 76]


def test_a_sum_over_a_split_dim_takes_exactly_one_all_reduce() -> None:
    total, program = summed_rows([("**", P("x", "y"))], outlay.mesh(x=2, y=4))
    np.testing.assert_array_equal(total, COLUMN_SUMS)
    assert total.sharding.spec == P("y")
    assert blocks(total) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert program.compiled.as_text().count(" all-reduce(") == num_collectives(program) == 1


def test_the_same_constrained_to_eight_pieces() -> None:
    layout, mesh = [("**", P("x", "y")), ("total", P(("x", "y")))], outlay.mesh(x=2, y=4)
    total, _ = summed_rows(layout, mesh, "total")
    np.testing.assert_array_equal(total, COLUMN_SUMS)
    # Over two axes of one mesh the first counts slower; a mesh of eight, as in the document, holds the same blocks.
    assert blocks(total) == [[0], [1], [2], [3], [4], [5], [6], [7]]


def by_hand(step, **axes):
    """A program in mode manual whose state is arange(32), split over 8 devices; its new state and its outputs."""
    state, mesh = np.arange(32, dtype=np.float32), outlay.mesh(**axes)
    layout = outlay.Layout([("**", P("i")), ("batch.**", outlay.replicate())])
    program = outlay.program(step, lambda key: jnp.asarray(state), np.zeros(1), layout=layout, mesh=mesh, mode="manual")
    return *program(outlay.arrays.put(state, program.plan, mesh), np.zeros(1)), program


def test_a_step_by_hand_on_pieces_of_four() -> None:
    seen = []

    def step(state, batch):
        seen.append(state.shape)
        return 2 * jnp.sin(state) + 1, None

    y, _, program = by_hand(step, i=8)
    np.testing.assert_allclose([y[0], y[1], y[31]], [1.0, 2.682942, 0.19192469], rtol=1e-5)
    np.testing.assert_allclose(y, 2 * np.sin(np.arange(32)) + 1, rtol=1e-5, atol=1e-6)
    assert seen[-1] == (4,)
    assert num_collectives(program) == 0


def test_sums_of_each_piece() -> None:
    got = on_pieces(lambda x: x.sum()[None], np.arange(32), specs=P("i"), out=P("i"), i=8)
    assert got.tolist() == [6, 22, 38, 54, 70, 86, 102, 118]


def test_psum_makes_them_the_whole_sum() -> None:
    _, total, program = by_hand(lambda state, batch: (state, jax.lax.psum(state.sum(), "i")), i=8)
    assert float(total) == 496.0
    assert program.compiled.as_text().count(" all-reduce(") == num_collectives(program) == 1


def test_wrong_out_specs_are_refused_with_the_line_that_fixes_them() -> None:
    with pytest.raises(
        outlay.errors.ProgramError,
        match=r"what it returns differs from device to device.*\n  fix: reduce it before returning: "
        r"jax\.lax\.psum\(x, axis\) or jax\.lax\.pmean\(x, axis\), axis of 'i'",
    ):
        by_hand(lambda state, batch: (state, state.sum()), i=8)


LAYER_OUTPUT = [0.02138916, 0.8931118, 0.5989196, 0.9774251]


def layer_inputs():
    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=32), rng.normal(size=(32, 4)), rng.normal(size=4)
    return {name: array.astype(np.float32) for name, array in {"x": x, "w": w, "b": b}.items()}


def sigmoid_layer(state, batch):
    return state, jax.nn.sigmoid(state["x"] @ state["w"] + state["b"])


def constrained_layer(state, batch):
    x = outlay.constrain(state["x"], "inputs")
    return state, jax.nn.sigmoid(x @ outlay.constrain(state["w"], "weights") + state["b"])


def layer_by_hand(state, batch):
    return state, jax.nn.sigmoid(jax.lax.psum(state["x"] @ state["w"], "i") + state["b"])


@pytest.mark.parametrize(
    ("step", "mode", "num_devices"),
    [
        (sigmoid_layer, "auto", 8),
        (constrained_layer, "auto", 8),
        (layer_by_hand, "manual", 8),
        (layer_by_hand, "manual", 1),
    ],
    ids=["auto", "constraint", "by hand on 8", "by hand on 1"],
)
def test_a_layer_in_every_way_gives_the_same(step, mode, num_devices) -> None:
    whole, split = outlay.replicate(), P("i")
    at_rest = whole if step is constrained_layer else split  # then only the constraint splits
    rules = [("x", at_rest), ("w", at_rest), ("b", whole), ("batch.**", whole)]
    if step is constrained_layer:
        rules += [("inputs", split), ("weights", split)]
    inputs, mesh = layer_inputs(), outlay.mesh(i=num_devices, devices=jax.devices()[:num_devices])
    program = outlay.program(
        step, lambda key: jax.tree.map(jnp.asarray, inputs), np.zeros(1), layout=rules, mesh=mesh, mode=mode
    )
    _, y = program(outlay.arrays.put(inputs, program.plan, mesh), np.zeros(1))
    np.testing.assert_allclose(y, LAYER_OUTPUT, rtol=1e-5)
    np.testing.assert_allclose(sigmoid_layer(inputs, None)[1], LAYER_OUTPUT, rtol=1e-5)
    assert y.sharding.is_fully_replicated
    assert num_collectives(program) == program.compiled.as_text().count(" all-reduce(")
    if num_devices > 1:  # of one device the sum is kept by some compilers, and left out by others
        assert num_collectives(program) == 1
