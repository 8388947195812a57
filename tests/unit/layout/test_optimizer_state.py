"""Optimizer state of any optax chain follows its parameters: real states, paths that collide as suffixes."""

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import abstract, shape

import outlay
from outlay.layout.optimizer_state import MirroredLeaves

MESH = abstract(data=4, model=2)

# Every path of the one ends a path of another, and most shapes are the same.
PARAMS = {
    "w": shape(8, 16),
    "enc": {"w": shape(8, 16)},
    "encoder": {"dense": {"kernel": shape(8, 16), "bias": shape(16)}},
    "decoder": {"dense": {"kernel": shape(8, 16), "bias": shape(16)}},
    "dense": {"kernel": shape(8, 16), "bias": shape(16)},
}
SPECS = {
    "w": P("data", None),
    "enc.w": P(None, "data"),
    "encoder.dense.kernel": P("model", None),
    "encoder.dense.bias": P("data"),
    "decoder.dense.kernel": P(None, "model"),
    "decoder.dense.bias": P("model"),
    "dense.kernel": P("data", "model"),
    "dense.bias": P(("data", "model")),
}
LAYOUT = outlay.Layout([(f"params.{path}", spec) for path, spec in SPECS.items()])


def is_bias(params):
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "bias", params)


def labels(params):
    return jax.tree.map(lambda bias: "biases" if bias else "kernels", is_bias(params))


OPTIMIZERS = {
    "adam": (optax.adam(1e-3), 2),
    "adamw": (optax.adamw(1e-3), 2),
    "momentum": (optax.sgd(1e-3, momentum=0.9), 1),
    "chain": (optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), 2),
    "lion": (optax.lion(1e-3), 1),
    "multi_transform": (optax.multi_transform({"kernels": optax.adam(1e-3), "biases": optax.adam(1e-3)}, labels), 2),
    "multi_steps": (optax.MultiSteps(optax.adam(1e-3), every_k_schedule=4), 3),
    "apply_if_finite": (optax.apply_if_finite(optax.adam(1e-3), max_consecutive_errors=3), 2),
    "schedule_free": (optax.contrib.schedule_free_adamw(1e-3), 2),
    "ema": (optax.chain(optax.adam(1e-3), optax.ema(0.99)), 3),
    "adafactor unfactored": (optax.adafactor(1e-3), 1),
}


@pytest.mark.parametrize(("optimizer", "num_moments"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_moment_lives_where_its_parameter_does(optimizer, num_moments):
    state = {"opt_state": jax.eval_shape(optimizer.init, PARAMS), "params": PARAMS}
    plan = LAYOUT.plan(state, MESH)
    for path, spec in SPECS.items():
        moments = [
            leaf for leaf in plan if leaf.path.startswith("opt_state.") and leaf.reason == f"follows params.{path}"
        ]
        assert [leaf.spec for leaf in moments] == [spec] * num_moments, path
        assert all(leaf.path.endswith(f".{path}") for leaf in moments)
    assert all(leaf.is_split for leaf in plan if leaf.shape and leaf.shape != (1,))


def test_masked_parameters_have_moments_only_where_the_mask_is_true():
    optimizer = optax.masked(optax.sgd(1e-3, momentum=0.9), is_bias)
    state = {"opt_state": jax.eval_shape(optimizer.init, PARAMS), "params": PARAMS}
    plan = LAYOUT.plan(state, MESH)
    specs_by_reason = {leaf.reason: leaf.spec for leaf in plan if leaf.path.startswith("opt_state")}
    assert specs_by_reason == {f"follows params.{path}": spec for path, spec in SPECS.items() if path.endswith("bias")}


@pytest.fixture
def factored():
    """Adafactor over a big kernel: rows and columns of its second moment have the shapes of other parameters."""
    params = {"w": shape(128), "enc": {"w": shape(128, 256)}}
    optimizer = optax.adafactor(1e-3, min_dim_size_to_factor=128)
    return {"params": params, "opt_state": jax.eval_shape(optimizer.init, params)}


FACTORED_LAYOUT = outlay.Layout([("params.enc.w", P("data", "model")), ("params.w", P("model"))])


def test_factored_moments_follow_nothing_and_are_reported_as_uncovered(factored):
    with pytest.raises(outlay.errors.LayoutError, match=r"2 problems") as error:
        FACTORED_LAYOUT.plan(factored, MESH)
    assert sorted((p.kind, p.where.split(".")[-3]) for p in error.value.problems) == [
        ("uncovered leaf", "v_col"),
        ("uncovered leaf", "v_row"),
    ]
    assert "mirrors no parameter" in str(error.value)


def test_factored_moments_are_not_covered_by_being_told_to_follow(factored):
    with_rule = FACTORED_LAYOUT + outlay.Layout([("opt_state.**", outlay.layout.follow("params"))])
    with pytest.raises(outlay.errors.LayoutError, match=r"(?s)uncovered leaf: opt_state.*v_(row|col)\.enc\.w"):
        with_rule.plan(factored, MESH)


def test_factored_moments_take_the_rules_that_reach_them(factored):
    for wild in ("**", "opt_state.**"):
        plan = (FACTORED_LAYOUT + outlay.fsdp(min_size=1, pattern=wild)).plan(factored, MESH)
        factors = [leaf for leaf in plan if ".v_row.enc." in leaf.path or ".v_col.enc." in leaf.path]
        assert [leaf.spec for leaf in factors] == [P("data")] * 2


@pytest.mark.parametrize("optimizer", [optax.adam(1e-3), optax.chain(optax.clip(1.0), optax.adamw(1e-3))])
def test_an_nnx_optimizer_follows_its_model(optimizer):
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(8, 16, rngs=rngs)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.encoder = Block(rngs)
            self.decoder = Block(rngs)
            self.dense = nnx.Linear(8, 16, rngs=rngs)

    model = Model(nnx.Rngs(0))
    state = {"model": nnx.state(model), "optimizer": nnx.state(nnx.Optimizer(model, optimizer, wrt=nnx.Param))}
    specs = {path: spec for path, spec in SPECS.items() if "dense" in path}
    plan = outlay.Layout([(f"model.{path}", spec) for path, spec in specs.items()]).plan(state, MESH)
    for path, spec in specs.items():
        moments = [leaf.spec for leaf in plan if leaf.reason == f"follows model.{path}"]
        assert moments == [spec] * 2, path


def test_a_rule_that_names_the_optimizer_overrides_its_parameter():
    state = {"opt_state": jax.eval_shape(optax.sgd(1e-3, momentum=0.9).init, PARAMS), "params": PARAMS}
    plan = (LAYOUT + outlay.Layout([("opt_state.**.enc.w", outlay.replicate())])).plan(state, MESH)
    assert plan["opt_state.0.trace.enc.w"].spec == P()
    assert plan["opt_state.0.trace.w"].spec == SPECS["w"]


def test_a_rule_that_does_not_name_the_optimizer_leaves_the_moments_with_their_parameter():
    params = {"w": shape(8, 16), "b": shape(16)}
    state = {"opt_state": jax.eval_shape(optax.sgd(1e-3, momentum=0.9).init, params), "params": params}
    layout = outlay.Layout([("params.w", outlay.replicate()), ("params.b", outlay.layout.on(5))]) + outlay.fsdp(
        min_size=1
    )
    with pytest.raises(outlay.errors.LayoutError, match="shadowed rule: rule 3"):
        layout.plan(state, MESH)
    plan = (outlay.Layout(layout.rules[:2])).plan(state, MESH)
    assert (plan["opt_state.0.trace.w"].spec, plan["opt_state.0.trace.w"].num_copies) == (P(), 8)
    assert plan["opt_state.0.trace.b"].device_ids == (5,)


def test_zero1_splits_the_moments_of_whole_parameters():
    state = {"opt_state": jax.eval_shape(optax.adam(1e-3).init, PARAMS), "params": PARAMS}
    plan = (outlay.zero1(min_size=1) + outlay.data_parallel()).plan(state, MESH)
    assert not any(leaf.is_split for leaf in plan if leaf.path.startswith("params."))
    assert all(leaf.is_split for leaf in plan if leaf.path.startswith("opt_state.") and leaf.shape)


def test_a_rule_that_only_reaches_following_moments_is_shadowed_and_told_how_to_reach_them():
    state = {"opt_state": jax.eval_shape(optax.adam(1e-3).init, PARAMS), "params": PARAMS}
    layout = LAYOUT + outlay.Layout([("**.mu.**", P())])
    with pytest.raises(
        outlay.errors.LayoutError, match=r'(?s)shadowed.*leaves follow.*begin its pattern with "opt_state\."'
    ):
        layout.plan(state, MESH)


def test_explicit_following_works_whatever_the_order_of_the_tree():
    for name in ("averages", "zaverages"):  # before and after `params` in a sorted dictionary
        state = {name: {"w": shape(8, 16)}, "params": {"w": shape(8, 16)}}
        plan = outlay.Layout([("params.w", P("data")), (f"{name}.**", outlay.layout.follow("params"))]).plan(
            state, MESH
        )
        assert plan[f"{name}.w"].spec == P("data", None)
        assert plan[f"{name}.w"].reason == "follows params.w"


def test_an_explicit_follow_is_not_said_twice():
    state = {"opt_state": {"w": shape(8, 16)}, "params": {"w": shape(8, 16)}}
    plan = outlay.Layout([("params.w", P("data")), ("opt_state.**", outlay.layout.follow("params"))]).plan(state, MESH)
    assert plan["opt_state.w"].reason == "follows params.w"


def test_a_moment_of_two_trees_that_are_placed_alike_follows_either():
    state = {"ema": {"w": shape(8)}, "opt_state": {"mu": {"w": shape(8)}}, "params": {"w": shape(8)}}
    plan = outlay.Layout([("*.w", P("data"))]).plan(state, MESH)
    assert plan["opt_state.mu.w"].spec == P("data")


def test_a_moment_of_two_trees_that_are_placed_differently_must_be_told_which():
    state = {"ema": {"w": shape(8)}, "opt_state": {"mu": {"w": shape(8)}}, "params": {"w": shape(8)}}
    layout = outlay.Layout([("ema.w", P("model")), ("params.w", P("data"))])
    with pytest.raises(
        outlay.errors.LayoutError,
        match=r"(?s)ambiguous parameter: opt_state\.mu\.w.*2 leaves.*ema\.w, params\.w.*follow",
    ):
        layout.plan(state, MESH)
    with_rule = layout + outlay.Layout([("opt_state.**", outlay.layout.follow("params"))])
    assert with_rule.plan(state, MESH)["opt_state.mu.w"].spec == P("data")
    settled = layout + outlay.Layout([("opt_state.**", outlay.replicate())])
    assert settled.plan(state, MESH)["opt_state.mu.w"].spec == P()
    split = layout + outlay.Layout([("opt_state.**", P("model"))])
    assert split.plan(state, MESH)["opt_state.mu.w"].spec == P("model")


def test_a_rule_that_follows_what_is_not_there_names_what_is():
    state = {"ema": {"w": shape(8)}, "params": {"w": shape(8)}}
    layout = outlay.Layout([("params.w", P("data")), ("ema.**", outlay.layout.follow("parms"))])
    with pytest.raises(
        outlay.errors.LayoutError,
        match=r"(?s)follows nothing: rule 2.*1 leaf.*write outlay.layout.follow\(\"params\"\)",
    ):
        layout.plan(state, MESH)
    with pytest.raises(
        outlay.errors.LayoutError, match=r"(?s)uncovered leaf: the bare array\n.*follows nothing: rule 1"
    ):
        outlay.Layout([("**", outlay.layout.follow("params"))]).plan(jnp.ones(8), MESH)


def test_parameters_at_the_top_of_the_state_are_followed_too():
    assert MirroredLeaves({"w": (8,), "opt_state.mu.w": (8,)}).of("opt_state.mu.w") == ("w",)


def test_the_longest_ending_decides_even_when_only_a_shorter_one_has_the_shape():
    shapes = {"params.w": (4,), "params.enc.w": (4, 8), "opt_state.v_row.enc.w": (4,)}
    assert MirroredLeaves(shapes).of("opt_state.v_row.enc.w") == ()
