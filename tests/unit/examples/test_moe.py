"""The recipe `moe`: shapes of published models, every layout, and a run that goes on under another layout."""

import json

import jax
import numpy as np
import pytest

import outlay
from outlay.errors import RecipeError
from outlay.examples.moe import moe, within_limit
from outlay.models.transformer.published_experts import EXPERT_MODELS
from outlay.recipes.find import layouts_of
from outlay.recipes.prepare import prepare

PUBLISHED = {"mixtral-8x7b": (46.7e9, 12.9e9), "qwen3-30b-a3b": (30.5e9, 3.3e9)}
"""Parameters in all and of one token, as their papers say."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_the_source_says(name):
    config = EXPERT_MODELS[name].config
    np.testing.assert_allclose((config.num_params, config.num_active_params), PUBLISHED[name], rtol=0.02)


@pytest.mark.compiles
@pytest.mark.parametrize("layout", ["ep+fsdp", "ep+fsdp+tp", "pp+ep+fsdp"])
def test_experts_lie_on_their_axis_and_parameters_are_counted(layout):
    recipe = moe("mixtral-8x7b", layers=4, batch=32)
    state = jax.eval_shape(recipe.init, jax.eval_shape(lambda: jax.random.key(0)))
    plan = recipe.layouts[layout].plan(state, outlay.mesh(recipe.mesh_of(layout)), batch=recipe.data[0])
    stack = plan["params.layers.feed_forward.experts.up.kernel"]
    assert stack.dims[1] == ("expert",)
    assert stack.num_copies == 1
    assert plan["batch.tokens"].dims[0] == ("data", "expert")
    config = EXPERT_MODELS["mixtral-8x7b"].config
    expected = config.num_params - (config.num_layers - 4) * config.num_layer_params
    assert sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(state.params)) == expected


def test_layouts_for_the_shell_are_those_of_the_recipe():
    assert layouts_of("moe") == tuple(moe().layouts)
    assert list(moe(dropless=True).layouts) == ["dp", "fsdp"]


def test_what_cannot_be_asked_for_is_all_named():
    with pytest.raises(RecipeError, match="no model 'mixtral': did you mean 'mixtral-8x7b'"):
        moe("mixtral")
    with pytest.raises(RecipeError, match="moe cannot be made") as error:
        moe(top_k=9, capacity_factor=-1.0, max_dropped=2.0, remat="queris")
    for line in ("top_k=9: a token chooses from 1 to all 8 experts", "capacity_factor=-1.0", "max_dropped=2.0"):
        assert line in str(error.value)
    with pytest.raises(RecipeError, match=r"drop 25.0 % of the choices of held-out data, more than max_dropped=0.1"):
        within_limit(lambda program, state: {"dropped_share": 0.25}, 0.1)(None, None)  # pyright: ignore[reportArgumentType]


def test_experts_and_attention_multiply_in_fp8_and_routers_do_not():
    recipe = moe(sequence=16, batch=8, layers=1, experts=4, precision="fp8")
    plan = prepare(recipe, layout="ep", mesh="data=2,expert=4").program.plan
    in_fp8 = {leaf.path for leaf in plan.of_kind("state") if "FP8 (current" in leaf.reason}
    layer = {f"attention.{name}" for name in ("query", "key", "value", "output")}
    layer |= {f"feed_forward.experts.{name}" for name in ("gate", "up", "down")}
    assert in_fp8 == {f"params.layers.{name}.kernel" for name in layer}
    rules = moe("deepseek-v3-like", layers=1, batch=8, precision="fp8-blockwise").layouts["dp"]
    assert "params.layers.feed_forward.shared.**.kernel" in [rule.pattern for rule in rules]
    with pytest.raises(RecipeError, match=r"precision='fp8' with dropless.*\n  fix: leave out dropless"):
        moe(dropless=True, precision="fp8")


@pytest.mark.thorough  # losses, metrics and layouts have tests of their own, and so do runs and checkpoints
@pytest.mark.compiles
def test_a_run_says_its_load_and_goes_on_under_another_layout(tmp_path):
    def metrics_of(layout, mesh, steps, folder, **other):
        recipe = moe(sequence=16, batch=8, layers=1, experts=4)
        outlay.run(recipe, layout=layout, mesh=mesh, steps=steps, run_folder=tmp_path / folder, **other)
        lines = (tmp_path / folder / "metrics.jsonl").read_text().splitlines()
        return json.loads(lines[-1])

    first = metrics_of("ep", "data=2,expert=4", 2, "run", checkpoint_every=2)
    assert np.isclose(sum(first["expert_load"]), 1.0)
    assert 0 < first["dropped_share"] < 1 <= first["busiest_expert"] <= 4
    assert "xpert_load in step 2" in (tmp_path / "run" / "report.html").read_text()
    later = metrics_of("dp", "data=8", 3, "run", resume=True)
    assert later["step"] == 3
    # Each step has another batch: a step is compared with the same one of a run that never stopped.
    straight = metrics_of("ep", "data=2,expert=4", 3, "straight")
    for name in ("loss", "balance_loss", "z_loss"):
        np.testing.assert_allclose(later[name], straight[name], rtol=1e-3, err_msg=name)


@pytest.mark.thorough  # test_findings.py has the mistake
@pytest.mark.compiles
def test_tokens_on_their_way_to_experts_are_no_mistake_of_fsdp():
    recipe = moe(sequence=16, batch=16, layers=2, experts=4, loss_chunks=2)
    program = prepare(recipe, layout="ep+fsdp", mesh="data=2,expert=4").program
    assert program.plan.expert_axes == ("expert",)
    explanation = outlay.explain(program)
    assert any(one.kind == "all-to-all" and one.axes == ("expert",) for one in explanation.collectives)
    assert explanation.of_kind("all-to-all-in-fsdp") == ()
