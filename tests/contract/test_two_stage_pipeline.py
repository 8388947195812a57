"""A pipeline of two stages on a step graph: each on its own device, they compute what one device computes."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import outlay

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "two_stage_pipeline.py"))


@pytest.fixture(scope="module")
def placed():
    return EXAMPLE["program"]("placed")


def test_each_stage_is_on_its_own_device_and_computes_the_same(placed):
    assert outlay.verify(placed, steps=1).headline.startswith("the same")
    assert len(placed.device_groups) == 2


@pytest.mark.thorough  # the tests beside this one have the numbers, and when gradients come
def test_it_learns_although_gradients_come_two_steps_late(placed):
    together, apart = EXAMPLE["losses"](EXAMPLE["program"]("auto"), 6), EXAMPLE["losses"](placed, 6)
    np.testing.assert_allclose(apart, together, rtol=1e-5)
    assert together[0] == 0  # nothing has arrived yet
    assert together[-1] < together[EXAMPLE["DELAY"]] / 2


def test_a_gradient_is_of_the_batch_that_was_sent_two_steps_before():
    """After three steps `body` has moved by the gradient of the first batch, and by nothing else."""
    import jax

    program = EXAMPLE["program"]("auto")
    start = jax.device_get(program.init(jax.random.key(0)))
    inputs = {name: values[:1] for name, values in EXAMPLE["batch"](0).items()}
    state = program.with_batch(inputs).init(jax.random.key(0))
    one = program.with_batch(inputs)
    weights = [start["body"]["weights"]]
    for _ in range(3):
        state, _ = one(state, inputs)
        weights.append(jax.device_get(state["body"]["weights"]))
    np.testing.assert_array_equal(weights[1], weights[0])
    np.testing.assert_array_equal(weights[2], weights[0])

    x, target = inputs["x"][0], inputs["target"][0]

    def loss(first):
        return ((EXAMPLE["activations"](first, x) @ start["head"]["weights"] - target) ** 2).mean()

    expected = weights[0] - EXAMPLE["RATE"] * jax.grad(loss)(weights[0])
    np.testing.assert_allclose(weights[3], expected, rtol=1e-5, atol=1e-7)
