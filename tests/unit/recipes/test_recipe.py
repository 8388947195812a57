import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.unit.recipes import small

import outlay
from outlay.core.error_types import RecipeError
from outlay.recipes.prepare import prepare
from outlay.recipes.ways_to_fit import Workloads
from outlay.search.candidate import Candidate


def test_all_wrong_fields_are_named_at_once():
    with pytest.raises(RecipeError) as error:
        dataclasses.replace(
            small.line(),
            name="",
            step=3,
            data=5,
            steps=0,
            layouts={"dp": []},
            meshes={"tp": "x=2"},
            modes={"dp": "fast", "tp": "auto"},
            evaluate=1,
            sample="text",
        )
    for expected in (
        "name must be a text",
        "step must be a function, not a int",
        "evaluate must be a function or None, not a int",
        "sample must be a function or None, not a str",
        "data must give the batch of a step as data[step]; a int does not",
        "steps must be a whole number of at least 1, not 0",
        "layouts['dp'] must be an outlay.Layout, not a list",
        "meshes['tp'] names no layout; the layouts are dp",
        "modes['tp'] names no layout; the layouts are dp",
        "modes['dp'] must be one of auto, manual, placed, not 'fast'",
    ):
        assert expected in str(error.value)


def test_a_recipe_needs_a_layout():
    with pytest.raises(RecipeError, match="layouts is empty: give at least one"):
        dataclasses.replace(small.line(), layouts={})


def test_the_first_layout_is_the_default_and_meshes_can_differ():
    layouts = {"tp": outlay.data_parallel("x"), "dp": outlay.data_parallel()}
    recipe = dataclasses.replace(small.line(), layouts=layouts, meshes={"tp": "x=-1"})
    assert recipe.default_layout == "tp"
    assert (recipe.mesh_of("tp"), recipe.mesh_of("dp")) == ("x=-1", "data=-1")


def test_a_layout_may_have_a_mode_of_its_own():
    recipe = dataclasses.replace(small.line(), modes={"fsdp": "manual"})
    assert (recipe.mode_of("fsdp"), recipe.mode_of("dp")) == ("manual", "auto")


def test_any_users_model_can_be_run_under_every_standard_layout():
    recipe = small.line()
    for layout in recipe.layouts.values():
        program = outlay.program(recipe.step, recipe.init, recipe.data[0], layout=layout, mesh=outlay.mesh(data=8))
        assert program.plan["params.w"].shape == (32,)


def test_the_seed_reaches_parameters_and_data():
    examples = {"x": np.zeros((72, 32), np.float32), "y": np.zeros(72, np.float32)}
    ways = {"loss": small.loss, "optimizer": optax.sgd(0.1), "train": examples, "test": examples}
    drawn = {"init_params": lambda key: {"w": jax.random.normal(key, 32)}, "batch_size": 16, "steps": 12}
    recipe = outlay.Recipe.training("drawn", **drawn, **ways)
    w = recipe.init(jax.random.key(0)).params["w"]
    assert not (w == recipe.init(jax.random.key(1)).params["w"]).any()


def test_a_loss_of_one_number_says_how_it_is_reduced():
    x = np.random.default_rng(0).normal(size=(37, 4)).astype(np.float32)
    examples = {"x": x, "y": x.sum(axis=1)}

    def loss(params, batch, keys):
        errors = jnp.square(batch["x"] @ params["w"] - batch["y"])
        return errors.mean(), {"worst": errors.max()}

    recipe = outlay.Recipe.training(
        "mean",
        init_params=lambda key: {"w": jnp.zeros(4)},
        loss=loss,
        optimizer=optax.sgd(0.1),
        train=examples,
        test=examples,
        batch_size=16,
        steps=3,
        reduction="mean",
    )
    layout, mesh = recipe.layouts["dp"], outlay.mesh(data=8)
    program = outlay.program(recipe.step, recipe.init, recipe.data[0], layout=layout, mesh=mesh)
    assert recipe.evaluate
    held_out = recipe.evaluate(program, program.init(jax.random.key(0)))
    np.testing.assert_allclose(held_out["loss"], np.square(examples["y"]).mean(), rtol=1e-6)


def test_step_and_init_may_take_the_state_in_parts():
    def train(w, count, batch):
        return w - 0.5 * batch.mean(), count + 1, {"loss": batch.mean()}

    recipe = outlay.Recipe(
        name="parts",
        init=lambda key: (jax.random.normal(key, (8, 4)), jnp.zeros((), jnp.int32)),
        step=train,
        data=[np.ones((8, 4), np.float32)] * 3,
        steps=3,
        layouts={"fsdp": outlay.fsdp(min_size=8) + outlay.data_parallel()},
        parts=("w", "count"),
    )
    program = prepare(recipe).program
    state, outputs = program(program.init(jax.random.key(0)), recipe.data[0])
    assert int(state["count"]) == 1
    assert program.plan["w"].spec == jax.P("data", None)
    assert float(outputs["loss"]) == 1.0
    # `choose` traces a step by itself, for meshes that need not exist.
    work = Workloads("parts", (), recipe, {}, None, None)(Candidate("fsdp", "data=8"))
    assert sorted(work.state) == ["count", "w"]
