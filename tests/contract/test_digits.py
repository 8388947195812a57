"""The recipe `digits` learns real data, and every layout gives the numbers of one device."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.layout.layout import Layout
from outlay.program.program import Program
from outlay.recipes.digits import digits
from outlay.recipes.prepare import prepare
from outlay.train.loop import fit

LAYOUTS = ("fsdp+tp", "zero2", "fsdp", "dp", "zero1", "replicated")
ALL_AXES = "fsdp+tp"
"""The layout that begins by itself and is evaluated: it splits along every axis, and so adds up in the most places. The
others begin with one device's state."""
PART = 20
"""Steps that are compared, almost two passes over the data: a gradient that is wrong shows in the first ones."""


@pytest.fixture(scope="module")
def recipe():
    """The recipe, with its batches made once for all layouts."""
    made = digits()
    return dataclasses.replace(made, data=[made.data[step] for step in range(made.steps)])


def train(recipe, program, num_steps, start=None):
    """The state, and the loss of every step."""
    done = fit(program, recipe.data, steps=num_steps, key=jax.random.key(recipe.seed), progress=False, start=start)
    return done.state, [metrics["loss"] for metrics in done.history]


@pytest.fixture(scope="module")
def one_device(recipe):
    """What one device begins with, its losses, and its held-out metrics."""
    mesh = outlay.mesh(data=1, devices=jax.devices()[:1])
    whole = Layout([("**", outlay.replicate()), ("batch.**", outlay.replicate())])
    program = Program(recipe.step, recipe.init, recipe.data[0], whole, mesh)
    first = jax.device_get(program.init(jax.random.key(recipe.seed)))
    state, losses = train(recipe, program, PART)
    return first, losses, recipe.evaluate(program, state)


def test_digits_has_the_documented_layouts(recipe):
    assert set(recipe.layouts) == set(LAYOUTS)


def test_fsdp_is_a_program_in_which_explain_finds_nothing(recipe):
    explanation = outlay.explain(prepare(recipe, layout="fsdp").program)
    assert explanation.findings == ()
    assert {one.kind for one in explanation.collectives} == {"all-gather", "all-reduce"}  # parameters, gradients


@pytest.mark.some_cases(1)  # test_layouts.py has each layout with smaller models
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_learns_the_same(recipe, one_device, layout):
    program = prepare(recipe, layout=layout).program
    assert program.mesh.size == 8
    first, expected_losses, expected = one_device
    if layout != ALL_AXES:
        own = jax.tree.map(jnp.copy, first)  # a step takes its state for good
        _, losses = train(recipe, program, PART, start=(0, outlay.arrays.put(own, program.plan, program.mesh)))
        np.testing.assert_allclose(losses, expected_losses, atol=1e-4)
        return
    state, losses = train(recipe, program, PART)
    np.testing.assert_allclose(losses, expected_losses, atol=1e-4)
    held_out = recipe.evaluate(program, state)
    assert abs(held_out["loss"] - expected["loss"]) < 1e-4
    assert held_out["accuracy"] == expected["accuracy"] > 0.8


@pytest.mark.thorough  # the test above has the first steps
def test_it_is_learned_in_the_steps_of_the_recipe(recipe):
    program = prepare(recipe, layout=ALL_AXES).program
    state, losses = train(recipe, program, recipe.steps)
    assert losses[-1] < 0.05
    assert recipe.evaluate(program, state)["accuracy"] >= 0.97
