"""Meshes and collectives; blocks over axes, and what devices say to each other by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from tests.contract.placed_as_planned import blocks, num_collectives

import outlay

NO_BATCH = np.zeros(1, np.float32)


def run(function, tree, rules, mesh):
    """The output and the program of one step that computes `function` of the state."""
    layout = outlay.Layout([*rules, ("batch.**", outlay.replicate())])
    program = outlay.program(lambda s, b: (s, function(s)), lambda key: tree, NO_BATCH, layout=layout, mesh=mesh)
    return program(outlay.arrays.put(tree, program.plan, mesh), NO_BATCH)[1], program


def test_eight_blocks() -> None:
    mesh, x = outlay.mesh(i=8), np.arange(8, dtype=np.float32)
    placed = outlay.arrays.put(x, outlay.Layout([("**", P("i"))]).plan(x, mesh), mesh)
    assert blocks(placed) == [[0], [1], [2], [3], [4], [5], [6], [7]]


def test_tanh_keeps_them() -> None:
    x = np.arange(8, dtype=np.float32)
    y, program = run(jnp.tanh, x, [("**", P("i"))], outlay.mesh(i=8))
    assert blocks(y) == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert num_collectives(program) == 0
    expected = [0, 0.7615942, 0.9640276, 0.9950547, 0.9993292, 0.99990916, 0.9999876, 0.99999833]
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_a_mesh_of_four_by_two() -> None:
    mesh = outlay.mesh(i=4, j=2)
    assert [[device.id for device in row] for row in mesh.devices] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.axis_names == ("i", "j")


def layer():
    rng = np.random.default_rng(0)
    shapes = {"x": (192, 64), "w": (64, 128), "b": (1, 128)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


LAYER_RULES = [("x", P("i", None)), ("w", P(None, "j")), ("b", P(None, "j"))]


def test_inputs_and_weights_over_different_axes() -> None:
    mesh, tree = outlay.mesh(i=4, j=2), layer()
    tree["b"] = tree["b"][0]
    plan = outlay.Layout([*LAYER_RULES[:2], ("b", P("j"))]).plan(tree, mesh)
    placed = outlay.arrays.put(tree, plan, mesh)
    assert blocks(placed["x"]) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert blocks(placed["w"]) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert blocks(placed["b"]) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_their_product_is_split_over_both_without_collectives() -> None:
    tree = layer()
    y, program = run(lambda s: s["x"] @ s["w"] + s["b"], tree, LAYER_RULES, outlay.mesh(i=4, j=2))
    assert y.shape == (192, 128)
    assert y.sharding.shard_shape(y.shape) == (48, 64)
    assert blocks(y) == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert num_collectives(program) == 0
    np.testing.assert_allclose(y, tree["x"] @ tree["w"] + tree["b"], rtol=1e-4, atol=1e-4)


def test_the_measure_would_see_a_collective() -> None:
    _, program = run(lambda s: s["x"] @ s["w"], layer(), [("x", P("i", "j")), *LAYER_RULES[1:]], outlay.mesh(i=4, j=2))
    assert num_collectives(program) > 0


def by_hand(function, tree, rules, **axes):
    """The new state of one step in mode manual, on the first devices."""
    size = int(np.prod(list(axes.values())))
    mesh = outlay.mesh(**axes, devices=jax.devices()[:size])
    layout = outlay.Layout([*rules, ("batch.**", outlay.replicate())])
    program = outlay.program(
        lambda state, batch: (function(state), None),
        lambda key: tree,
        NO_BATCH,
        layout=layout,
        mesh=mesh,
        mode="manual",
    )
    return program(outlay.arrays.put(tree, program.plan, mesh), NO_BATCH)[0]


def test_by_hand_each_device_sees_its_pieces_and_takes_unsharded_inputs() -> None:
    seen, tree = {}, layer()
    tree = {"x": tree["x"], "w": tree["w"], "b": tree["b"][0], "y": np.zeros((192, 128), np.float32)}

    def dense(state):
        seen.update({name: piece.shape for name, piece in state.items()})
        return {**state, "y": state["x"] @ state["w"] + state["b"][None]}

    specs = {"x": P("i", None), "w": P(None, "j"), "b": P("j"), "y": P("i", "j")}
    state = by_hand(dense, tree, list(specs.items()), i=4, j=2)
    assert seen == {"x": (48, 64), "w": (64, 64), "b": (64,), "y": (48, 64)}
    expected = tree["x"] @ tree["w"] + tree["b"]
    np.testing.assert_allclose(state["y"], expected, rtol=1e-4, atol=1e-4)

    mesh = outlay.mesh(i=4, j=2)
    in_specs = (specs["x"], specs["w"], specs["b"])
    mapped = jax.shard_map(lambda x, w, b: x @ w + b[None], mesh=mesh, in_specs=in_specs, out_specs=specs["y"])
    unsharded = [jnp.asarray(tree[name]) for name in ("x", "w", "b")]
    np.testing.assert_allclose(jax.jit(mapped)(*unsharded), expected, rtol=1e-4, atol=1e-4)


def test_row_normalisation_over_a_split_dim_is_true() -> None:
    x = np.random.default_rng(0).normal(3, 5, size=(8, 8)).astype(np.float32)

    def normalise(x):
        centred = x - outlay.collectives.mean_over(x, 1, "j")
        return centred / jnp.sqrt(outlay.collectives.mean_over(centred**2, 1, "j"))

    rows = np.asarray(by_hand(normalise, x, [("**", P("i", "j"))], i=2, j=4))
    np.testing.assert_allclose(rows.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(rows.std(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(rows, (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True), rtol=1e-4, atol=1e-5)

    def published(x):
        return (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)

    pieces = np.asarray(by_hand(published, x, [("**", P("i", "j"))], i=2, j=4))
    np.testing.assert_allclose(np.abs(pieces), 1, rtol=1e-3)  # each piece of two by itself: +-1 everywhere


def test_weights_gathered_by_hand_give_the_dense_result_bit_for_bit() -> None:
    rng, seen = np.random.default_rng(0), []
    tree = {
        "x": rng.normal(size=(192, 64)).astype(np.float32),
        "w": rng.normal(size=(64, 128)).astype(np.float32),
        "y": np.zeros((192, 128), np.float32),
    }

    def dense(state):
        whole = jax.lax.all_gather(state["w"], "i", tiled=True)
        seen.append((state["w"].shape, whole.shape))
        return {**state, "y": state["x"] @ whole}

    rules = [("x", P("i")), ("w", P("i")), ("y", P("i"))]
    y = by_hand(dense, tree, rules, i=4)["y"]
    assert seen[-1] == ((16, 128), (64, 128))
    # The same product of 48 rows at a time: a product of all rows may be blocked, and so rounded, in another way.
    product = jax.jit(jnp.matmul)
    expected = np.concatenate([product(rows, tree["w"]) for rows in np.split(tree["x"], 4)])
    np.testing.assert_array_equal(y, expected)


def test_a_sum_scattered_along_a_dim() -> None:
    rows = np.array([[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 1, 2]])
    mesh = outlay.mesh(i=4, devices=jax.devices()[:4])
    scattered = jax.shard_map(
        lambda row: outlay.collectives.sum_scatter(row[0], "i"), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    )(rows)
    assert scattered.tolist() == [22, 20, 12, 17]
    assert blocks(scattered) == [[0], [1], [2], [3]]


def test_a_ring() -> None:
    shifted = by_hand(lambda x: outlay.collectives.ring_shift(x, "i"), np.arange(4), [("**", P("i"))], i=4)
    assert shifted.tolist() == [3, 0, 1, 2]


def test_the_table_of_coordinates() -> None:
    table = by_hand(
        lambda x: outlay.collectives.axis_coordinates("i", "j")[None, None],
        np.zeros((4, 2, 2), np.int32),
        [("**", P("i", "j"))],
        i=4,
        j=2,
    )
    assert table.tolist() == [[[i, j] for j in range(2)] for i in range(4)]
    assert blocks(table) == [[0], [1], [2], [3], [4], [5], [6], [7]]


def test_keys_folded_over_an_axis() -> None:
    """Random numbers that differ along `i` and are the same along `j`."""

    def fold(data):
        key = jax.random.fold_in(jax.random.key(0), jax.lax.axis_index("i"))
        return jax.random.key_data(key)[None]

    keys = by_hand(fold, np.zeros((4, 2), np.uint32), [("**", P("i"))], i=4, j=2)
    assert keys.tolist() == [
        [1797259609, 2579123966],
        [928981903, 3453687069],
        [4146024105, 2718843009],
        [2467461003, 3840466878],
    ]
    assert blocks(keys) == [[0, 1], [2, 3], [4, 5], [6, 7]]
