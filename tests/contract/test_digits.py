"""The recipe `digits` learns real data, and every layout gives the numbers of one device."""

import dataclasses

import jax
import pytest

import outlay
from outlay.layout.layout import Layout
from outlay.program.program import Program
from outlay.recipes.digits import digits
from outlay.recipes.prepare import prepare
from outlay.train.loop import fit

LAYOUTS = ("replicated", "dp", "zero1", "zero2", "fsdp", "fsdp+tp")
ALL_AXES = "fsdp+tp"
"""The layout that trains to the end: it splits along every axis, and so adds up in the most places."""
PART = 20
"""Steps that are compared, almost two passes over the data: a gradient that is wrong shows in the first ones."""


@pytest.fixture(scope="module")
def recipe():
    """The recipe, with its batches made once for all layouts."""
    made = digits()
    return dataclasses.replace(made, data=[made.data[step] for step in range(made.steps)])


def train(recipe, program, num_steps, start=None):
    done = fit(program, recipe.data, steps=num_steps, key=jax.random.key(recipe.seed), progress=False, start=start)
    return done.state, (done.history[-1]["loss"], recipe.evaluate(program, done.state))


@pytest.fixture(scope="module")
def one_device(recipe):
    """Loss and held-out metrics of one device."""
    mesh = outlay.mesh(data=1, devices=jax.devices()[:1])
    whole = Layout([("**", outlay.replicate()), ("batch.**", outlay.replicate())])
    program = Program(recipe.step, recipe.init, recipe.data[0], whole, mesh)
    return train(recipe, program, PART)[1]


def test_it_has_the_layouts_that_it_promises(recipe):
    assert set(recipe.layouts) == set(LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_learns_the_same(recipe, one_device, layout):
    program = prepare(recipe, layout=layout).program
    assert program.mesh.size == 8
    state, (loss, held_out) = train(recipe, program, PART)
    expected_loss, expected = one_device
    assert abs(loss - expected_loss) < 1e-4
    assert abs(held_out["loss"] - expected["loss"]) < 1e-4
    assert held_out["accuracy"] == expected["accuracy"] > 0.8
    if layout == ALL_AXES:
        _, (loss, held_out) = train(recipe, program, recipe.steps, start=(PART, state))
        assert loss < 0.05
        assert held_out["accuracy"] >= 0.97
