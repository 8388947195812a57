"""A recipe's program with sizes that can be computed here, on a smaller mesh of the same kind."""

import dataclasses

import jax
import numpy as np
import pytest
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.core.error_types import RecipeError
from outlay.recipes.prepare import prepare
from outlay.recipes.smaller import smaller


def recipe(width=64, batch=256):
    """A recipe that says how it is made smaller."""
    return outlay.Recipe(
        "mine",
        lambda key: {"w": jax.numpy.zeros((width, width))},
        lambda state, batch: (state, {"sum": (batch @ state["w"]).sum()}),
        [np.zeros((batch, width), np.float32)],
        1,
        {"both": outlay.tensor_parallel("model", columns=["w"], rows=[]) + outlay.data_parallel()},
        {"both": "data=-1,model=2"},
        small=lambda less: recipe(16, less.batch(batch)),
    )


@needs_gpu_compiler
def test_a_recipe_on_256_devices_becomes_small_on_16_with_the_same_axes_and_samples_a_device():
    full = prepare(recipe(), target="h100:32x8")
    small = smaller(full).program
    assert dict(full.program.mesh.shape) == {"data": 128, "model": 2}
    assert dict(small.mesh.shape) == {"data": 8, "model": 2}
    assert small.plan.mesh.target == "h100:2x8"
    assert small.batch_shapes.shape == (16, 16)
    assert small.plan["w"].spec == full.program.plan["w"].spec


@needs_gpu_compiler
def test_a_recipe_that_does_not_say_how_it_is_made_smaller_is_refused_with_the_line_to_write():
    batch = np.zeros((8, 2), np.float32)
    recipe = outlay.Recipe(
        "mine", lambda key: {"w": jax.numpy.zeros(2)}, lambda s, b: (s, {}), [batch], 1, {"dp": outlay.data_parallel()}
    )
    with pytest.raises(RecipeError, match=r"(?s)'mine' does not say how it is made smaller.*small=lambda"):
        smaller(prepare(recipe, target="h100:1x8"))


@needs_gpu_compiler
def test_a_recipe_that_says_nothing_keeps_its_sizes_and_the_samples_of_a_device_on_fewer_devices():
    given = dataclasses.replace(recipe(), small=None)
    small = smaller(prepare(given, target="h100:32x8"))
    assert small.program.mesh.size == 16
    assert small.program.batch_shapes.shape == small.recipe.data[0].shape == (16, 64)
    assert small.program.plan["w"].shape == (64, 64)
