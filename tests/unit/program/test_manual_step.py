"""Rules for `outputs.**`: how what a step returns is split, in either mode."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # tests/contract/test_modes.py runs there

BATCH = np.arange(48, dtype=np.float32).reshape(16, 3)
MESH = {"data": 4, "model": 2}


def doubled(state, batch):
    return state, {"doubled": batch * 2, "sum": {"mine": batch.sum()}}


def summed(state, batch):
    total = jax.lax.psum(batch.sum(), "data")
    return state, {"doubled": batch * 2, "sum": {"mine": total}}


def program(step, rules, mode="manual"):
    layout = outlay.Layout(rules) + outlay.data_parallel()
    mesh = outlay.mesh(**MESH)
    return outlay.program(step, lambda key: {"w": jnp.ones(8)}, BATCH, layout=layout, mesh=mesh, mode=mode)


def outputs_of(built):
    return built(built.init(jax.random.key(0)), BATCH)[1]


def error_of(step, rules, error=outlay.errors.ProgramError):
    with pytest.raises(error) as caught:
        outputs_of(program(step, rules))
    return str(caught.value)


RULE = ("outputs.doubled", P("data"))


@pytest.mark.parametrize(("step", "mode"), [(summed, "manual"), (doubled, "auto")])
def test_a_rule_says_how_an_output_is_split_and_the_others_stay_whole(step, mode):
    built = program(step, [RULE], mode)
    outputs = outputs_of(built)
    np.testing.assert_array_equal(outputs["doubled"], BATCH * 2)
    assert outputs["doubled"].sharding.shard_shape((16, 3)) == (4, 3)
    assert float(outputs["sum"]["mine"]) == BATCH.sum()
    leaf = built.plan["outputs.doubled"]
    assert (leaf.shape, leaf.local_shape, leaf.kind) == ((16, 3), (4, 3), "intermediate")
    assert [leaf.path for leaf in built.plan.of_kind("intermediate")] == ["outputs.doubled"]
    assert outlay.verify(built, batches=[BATCH] * 2, steps=2).ok


def test_pieces_of_sizes_that_nothing_divides_make_a_whole_too():
    def step(state, batch):
        return state, (batch.sum(keepdims=True).ravel(), jnp.ones((3, 5)) * batch.sum())

    built = program(step, [("outputs.*", P("data"))])
    sums, ones = outputs_of(built)
    np.testing.assert_array_equal(sums, BATCH.reshape(4, -1).sum(1))
    assert ones.shape == (12, 5) == built.plan["outputs.1"].shape


@pytest.mark.compiles
def test_the_metrics_of_a_train_step_are_outputs_like_any_other():
    optimizer = optax.sgd(0.1)
    step = outlay.train_step(lambda params, batch, keys: ((batch @ params["w"]) ** 2, {}), optimizer)
    init = outlay.init_state(lambda key: {"w": jnp.ones(3)}, optimizer)
    layout = outlay.Layout([("outputs.loss", outlay.replicate())]) + outlay.data_parallel()
    expected, metrics = jax.jit(step)(init(jax.random.key(0)), BATCH)
    for mode in ("auto", "manual"):
        built = outlay.program(step, init, BATCH, layout=layout, mesh=outlay.mesh(**MESH), mode=mode)
        state, outputs = built(built.init(jax.random.key(0)), BATCH)
        np.testing.assert_allclose(outputs["loss"], metrics["loss"], rtol=1e-6)
        np.testing.assert_allclose(state.params["w"], expected.params["w"], rtol=1e-6)


def test_an_output_that_differs_without_a_rule_is_refused_and_told_the_rule():
    message = error_of(doubled, [])
    assert "outputs are the same everywhere, unless a rule says how they are split" in message
    assert "\n  or, where an output is to be split, add a rule such as (\"outputs.**\", P('data'))" in message


@pytest.mark.any_jax
def test_a_rule_that_leaves_out_what_differs_is_refused():
    assert "1 array: outputs.sum.mine over 'data';" in error_of(doubled, [RULE])


@pytest.mark.any_jax
def test_copies_that_a_rule_calls_pieces_are_refused_all_at_once():
    def step(state, batch):
        total = jax.lax.psum(batch, "data")
        return state, {"a": total, "b": {"c": total}}

    message = error_of(step, [("outputs.**", P("data"))])
    assert "2 outputs of a step in mode manual not as the layout says" in message
    for path in ("outputs.a", "outputs.b.c"):
        assert f"copies: {path}\n    a rule splits it by P('data'" in message
    assert "along 'data' every device returns the same array" in message


@pytest.mark.any_jax
def test_a_rule_for_more_dims_or_other_outputs_than_there_are_is_refused_by_the_plan():
    assert "outputs.sum.mine" in error_of(summed, [("outputs.sum.mine", P("data"))], outlay.errors.LayoutError)
    message = error_of(summed, [("outputs.double", P("data"))], outlay.errors.LayoutError)
    assert "unused rule" in message
    assert "outputs.doubled" in message


@pytest.mark.any_jax
def test_an_unknown_axis_and_a_step_that_returns_no_pair_are_named_before_any_rule_is_looked_at():
    unknown = error_of(lambda state, batch: (state, jax.lax.psum(batch, "dat")), [("outputs", P("data"))])
    assert "uses a collective over 'dat', which is not an axis of this mesh: did you mean 'data'?" in unknown
    no_pair = error_of(lambda state, batch: jax.lax.psum(state, "data"), [("outputs", P("data"))])
    assert "must return (state, outputs), a pair" in no_pair
