"""Acceptance, document 2: meshes; blocks over one and two axes, and a matrix product that needs no collective."""

from __future__ import annotations

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
    return program(outlay.put(tree, program.plan, mesh), NO_BATCH)[1], program


def test_s2_05_eight_blocks() -> None:
    mesh, x = outlay.mesh(i=8), np.arange(8, dtype=np.float32)
    placed = outlay.put(x, outlay.Layout([("**", P("i"))]).plan(x, mesh), mesh)
    assert blocks(placed) == [[0], [1], [2], [3], [4], [5], [6], [7]]


def test_s2_06_tanh_keeps_them() -> None:
    x = np.arange(8, dtype=np.float32)
    y, program = run(jnp.tanh, x, [("**", P("i"))], outlay.mesh(i=8))
    assert blocks(y) == [[0], [1], [2], [3], [4], [5], [6], [7]]
    assert num_collectives(program) == 0
    expected = [0, 0.7615942, 0.9640276, 0.9950547, 0.9993292, 0.99990916, 0.9999876, 0.99999833]
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_s2_07_a_mesh_of_four_by_two() -> None:
    mesh = outlay.mesh(i=4, j=2)
    assert [[device.id for device in row] for row in mesh.devices] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.axis_names == ("i", "j")


def layer():
    rng = np.random.default_rng(0)
    shapes = {"x": (192, 64), "w": (64, 128), "b": (1, 128)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


LAYER_RULES = [("x", P("i", None)), ("w", P(None, "j")), ("b", P(None, "j"))]


def test_s2_08_inputs_and_weights_over_different_axes() -> None:
    mesh, tree = outlay.mesh(i=4, j=2), layer()
    tree["b"] = tree["b"][0]
    plan = outlay.Layout([*LAYER_RULES[:2], ("b", P("j"))]).plan(tree, mesh)
    placed = outlay.put(tree, plan, mesh)
    assert blocks(placed["x"]) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert blocks(placed["w"]) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert blocks(placed["b"]) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_s2_09_their_product_is_split_over_both_without_collectives() -> None:
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
