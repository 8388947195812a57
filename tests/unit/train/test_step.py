import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from tests.unit.train import problem

import outlay
from outlay.core.error_types import ProgramError
from outlay.train.step import init_state, train_step

pytestmark = [pytest.mark.newest, pytest.mark.compiles]

LAYOUTS = {
    "dp": outlay.data_parallel(),
    "zero2": outlay.zero2(min_size=16) + outlay.data_parallel(),
}


@pytest.mark.thorough  # test_layouts.py compares with plain JAX
@pytest.mark.any_jax
def test_a_train_step_equals_one_written_by_hand():
    state = problem.init(jax.random.key(1))
    batch = problem.batch()
    keys = jax.vmap(lambda n: jax.random.fold_in(jax.random.fold_in(state.key, 0), n))(jnp.arange(64))

    def mean_loss(params):
        losses, metrics = problem.loss(params, batch, keys)
        return losses.mean(), metrics["accuracy"].mean()

    (loss, accuracy), grads = jax.jit(jax.value_and_grad(mean_loss, has_aux=True))(state.params)
    updates, opt_state = problem.OPTIMIZER.update(grads, state.opt_state, state.params)
    new, metrics = problem.step()(state, batch)
    problem.assert_same(new.params, optax.apply_updates(state.params, updates), rtol=1e-5, atol=1e-6)
    problem.assert_same(new.opt_state, opt_state, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(metrics["accuracy"], accuracy, rtol=1e-6)
    assert int(new.step) == 1


@pytest.mark.any_jax
def test_dropout_differs_from_step_to_step():
    state = problem.init(jax.random.key(1))
    first, metrics = problem.step()(state, problem.batch())
    later = type(state)(state.params, state.opt_state, first.step, state.key)
    assert problem.step()(later, problem.batch())[1]["loss"] != metrics["loss"]


@pytest.mark.some_cases(1)
@pytest.mark.any_jax
@pytest.mark.parametrize("accumulate", [4, pytest.param(64, marks=pytest.mark.any_jax)])
def test_accumulation_changes_nothing_but_rounding(accumulate):
    """Dropout masks included: a sample's key is its own, whatever microbatch it falls into."""
    state = problem.init(jax.random.key(1))
    whole, parts = problem.step(), problem.step(accumulate)
    expected, got = state, state
    for number in range(3):
        expected, metrics = whole(expected, problem.batch(seed=number))
        got, accumulated = parts(got, problem.batch(seed=number))
        problem.assert_same(accumulated, metrics, rtol=1e-5)
    problem.assert_same(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough  # test_modes.py pads batches of every strategy
@pytest.mark.any_jax
def test_padding_of_weight_zero_changes_nothing():
    """A padded batch equals the short one, in the mean too: sums are divided by the weight, not by the size."""
    state = problem.init(jax.random.key(1))
    short = problem.batch(48)
    padded = {name: np.concatenate([array, array[:16]]) for name, array in short.items()}
    padded["weight"] = np.repeat([1.0, 0.0], [48, 16]).astype(np.float32)
    expected, metrics = problem.step()(state, short)
    for accumulate in (1, 4):
        got, from_padded = problem.step(accumulate)(state, padded)
        problem.assert_same(got, expected, rtol=1e-5, atol=1e-6)
        problem.assert_same(from_padded, metrics, rtol=1e-5)


@pytest.mark.any_jax
def test_gradients_of_bfloat16_parameters_are_accumulated_in_float32():
    """512 gradients of 1: in bfloat16, which has 8 bits, the sum would stop growing at 256."""
    optimizer = optax.sgd(1.0)
    step = jax.jit(train_step(lambda p, x, keys: (p["w"] * x, {}), optimizer, accumulate=512))
    state = init_state(lambda key: {"w": jnp.zeros((), jnp.bfloat16)}, optimizer)(jax.random.key(0))
    new, _ = step(state, np.ones(512, np.float32))
    assert new.params["w"].dtype == jnp.bfloat16
    assert float(new.params["w"]) == -1.0


@pytest.mark.thorough  # tests/contract/test_layouts.py
def test_the_numbers_do_not_depend_on_the_mesh():
    """With microbatches and dropout; the contract of modes tries other layouts, and whole batches too."""
    expected = problem.init(jax.random.key(1))
    expected, metrics = problem.step()(expected, problem.batch())
    program = _program_of("zero2")
    state, outputs = program(program.init(jax.random.key(1)), problem.batch())
    problem.assert_same(state, expected, rtol=1e-4, atol=1e-6)
    problem.assert_same(outputs, metrics, rtol=1e-5)


@pytest.mark.any_jax
def test_accumulation_hides_no_gather_of_the_batch():
    """Data-parallel training needs all-reduces of gradients and of metrics, and nothing else."""
    for accumulate in (1, 4):
        hlo = _program_of("dp", accumulate).compiled.as_text()
        counts = collections.Counter(re.findall(r" (all-\w+|reduce-scatter|collective-permute)(?:-start)?\(", hlo))
        assert set(counts) == {"all-reduce"}, f"accumulate={accumulate}: {counts}"


def test_zero2_places_the_gradients():
    plan = _program_of("zero2").plan
    assert plan["grads.layers.0.kernel"].spec == jax.sharding.PartitionSpec(None, "data")


@pytest.mark.any_jax
def test_the_sum_over_microbatches_lives_where_the_rule_for_gradients_says():
    """ZeRO-1 splits what reads the sum; gradients that a rule keeps whole are whole in the loop that adds them."""
    layout = outlay.zero1(min_size=16, otherwise="replicate") + outlay.Layout([("grads.**", outlay.replicate())])
    hlo = _program(layout + outlay.data_parallel(), 4).compiled.as_text()
    (loop,) = [line for line in hlo.splitlines() if " while(" in line and "f32[4,2,16]" in line]
    carried = loop.split(" while(")[0]
    assert carried.count("f32[16,32]") == 2, "the parameters and the sum of their gradients"
    assert "f32[16,4]" not in carried


@pytest.mark.any_jax
def test_accumulate_must_be_positive():
    with pytest.raises(ProgramError, match="accumulate=0: a step needs at least 1 microbatch"):
        train_step(problem.loss, problem.OPTIMIZER, accumulate=0)


@functools.cache
def _program_of(name, accumulate=4):
    """Compiled once for all tests."""
    return _program(LAYOUTS[name], accumulate)


def _program(layout, accumulate):
    step = train_step(problem.loss, problem.OPTIMIZER, accumulate=accumulate)
    return outlay.program(step, problem.init, problem.batch(), layout=layout, mesh=outlay.mesh(data=8))


QUADRATIC = {
    "x": np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32),
    "y": np.random.default_rng(1).normal(size=64).astype(np.float32),
}


def quadratic_losses(params, batch, keys):
    return (batch["x"] @ params["w"] - batch["y"]) ** 2, {}


SEARCHING = optax.chain(optax.contrib.reduce_on_plateau(), optax.lbfgs())


@functools.cache
def searched_by_hand():
    """Losses of three steps and the parameters after them, by plain JAX."""

    def mean_loss(params):
        return quadratic_losses(params, QUADRATIC, None)[0].mean()

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(mean_loss)(params)
        updates, state = SEARCHING.update(grads, state, params, value=value, grad=grads, value_fn=mean_loss)
        return optax.apply_updates(params, updates), state, value

    params, losses = {"w": jnp.zeros(6)}, []
    state = SEARCHING.init(params)
    for _ in range(3):
        params, state, value = step(params, state)
        losses.append(value)
    return losses, params


@pytest.mark.some_cases(1)
@pytest.mark.any_jax  # what an optimizer is given does not depend on JAX
@pytest.mark.parametrize(("mode", "accumulate"), [("auto", 4), ("manual", 1)])
def test_optimizers_that_ask_for_the_loss_itself(mode, accumulate):
    """L-BFGS searches along a line for a lower loss, over the same global batch."""
    program = outlay.program(
        train_step(quadratic_losses, SEARCHING, accumulate=accumulate),
        init_state(lambda key: {"w": jnp.zeros(6)}, SEARCHING),
        QUADRATIC,
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
        mode=mode,
    )
    losses, params = searched_by_hand()
    state = program.init(jax.random.key(0))
    for value in losses:
        state, metrics = program(state, QUADRATIC)
        np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
    np.testing.assert_allclose(state.params["w"], params["w"], rtol=1e-4, atol=1e-5)


def test_float64_stays_float64():
    """Weights, their sum and metrics too: one of them in float32 costs the gradient half its digits."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        batch = {"x": rng.normal(size=(32, 6)), "y": rng.normal(size=32), "weight": rng.random(32)}
        optimizer = optax.sgd(1.0)
        state = init_state(lambda key: {"w": jnp.zeros(6)}, optimizer)(jax.random.key(0))
        new, metrics = train_step(quadratic_losses, optimizer, accumulate=4)(state, batch)
        weight = batch["weight"] / batch["weight"].sum()
        expected = -2 * (weight * -batch["y"]) @ batch["x"]
        assert metrics["loss"].dtype == jnp.float64
        np.testing.assert_allclose(metrics["loss"], weight @ batch["y"] ** 2, rtol=1e-14)
        np.testing.assert_allclose(new.params["w"], expected, rtol=1e-13)


def test_no_tracer_leaks():
    """With one parameter: after each trace JAX searches all that Python holds for what is left of it."""
    optimizer = optax.sgd(0.1)
    with jax.checking_leaks():
        step, init = train_step(quadratic_losses, optimizer), init_state(lambda key: {"w": jnp.zeros(6)}, optimizer)
        program = outlay.program(step, init, QUADRATIC, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8))
        assert program.lowered
