import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest
from tests.unit.train import problem

import outlay
from outlay.core.error_types import ProgramError
from outlay.train.evaluate import evaluate
from outlay.train.step import train_step

pytestmark = [pytest.mark.newest, pytest.mark.compiles]


@pytest.mark.any_jax  # what test_equinox_modules.py and the test of a loss of one number find there
def test_means_over_an_uneven_set_are_exact_and_without_dropout():
    state = training().init(jax.random.key(2))
    examples = problem.batch(37, seed=9)
    means = evaluate(training(), state, examples, loss=problem.loss)
    losses, metrics = problem.evaluated(jax.device_get(state.params), examples)
    np.testing.assert_allclose(means["loss"], losses.mean(), rtol=1e-6)
    np.testing.assert_allclose(means["accuracy"], metrics["accuracy"].mean(), rtol=1e-6)
    assert not state.params["layers"][0]["kernel"][...].is_deleted()


LAYOUT = outlay.fsdp(min_size=16, otherwise="replicate") + outlay.data_parallel()


def reading(step, **options):
    """A program that only reads the state of the training problem."""
    layout, mesh = LAYOUT, outlay.mesh(data=8)
    return outlay.program(step, problem.init, problem.batch(16), layout=layout, mesh=mesh, donate=False, **options)


@functools.cache
def reading_per_sample():
    return reading(per_sample)


@functools.cache
def training():
    step, mesh = train_step(problem.loss, problem.OPTIMIZER), outlay.mesh(data=8)
    return outlay.program(step, problem.init, problem.batch(16), layout=LAYOUT, mesh=mesh)


def per_sample(state, batch):
    losses, metrics = problem.loss(state.params, batch, None)
    return {"loss": losses, "inner": {"right": metrics["accuracy"]}}


@pytest.mark.thorough  # one program leaves it below
@pytest.mark.any_jax
def test_several_programs_work_on_one_state_and_leave_it_as_it_is():
    held_out = reading_per_sample()
    mean = reading(lambda state, batch: per_sample(state, batch)["loss"].mean())
    state = training().init(jax.random.key(2))
    state, _ = training()(state, problem.batch(16))
    examples = problem.batch(37, seed=9)
    for _ in range(2):
        means = outlay.evaluate(held_out, state, examples)
        outputs = held_out(state, problem.batch(16))
        np.testing.assert_allclose(mean(state, problem.batch(16)), outputs["loss"].mean(), rtol=1e-6)
    losses, metrics = problem.evaluated(jax.device_get(state.params), examples)
    np.testing.assert_allclose(means["loss"], losses.mean(), rtol=1e-6)
    np.testing.assert_allclose(means["inner.right"], metrics["accuracy"].mean(), rtol=1e-6)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
    training()(state, problem.batch(16))


@pytest.mark.any_jax
def test_weights_of_examples_count():
    examples = {**problem.batch(11, seed=3), "weight": np.arange(11, dtype=np.float32)}
    batch = {name: leaf[:8] for name, leaf in examples.items()}
    program = outlay.program(per_sample, problem.init, batch, layout=LAYOUT, mesh=outlay.mesh(data=8), donate=False)
    state = program.init(jax.random.key(0))
    losses, _ = problem.evaluated(jax.device_get(state.params), examples)
    expected = np.average(losses, weights=examples["weight"])
    np.testing.assert_allclose(outlay.evaluate(program, state, examples)["loss"], expected, rtol=1e-6)


@pytest.mark.thorough  # test_verify.py and test_explain.py have the reports
@pytest.mark.any_jax
def test_the_reports_take_a_program_that_only_reads():
    program = reading_per_sample()
    assert outlay.verify(program, steps=1).ok
    assert not [finding for finding in outlay.explain(program).findings if finding.kind in ("donation", "state-moves")]


@pytest.mark.any_jax
def test_programs_that_cannot_be_evaluated_are_refused():
    state = training().init(jax.random.key(2))
    with pytest.raises(ProgramError, match=r"returns a new state.*\n  fix: outlay.evaluate\(..., loss=loss\)"):
        outlay.evaluate(training(), state, problem.batch(16))
    mean = reading(lambda state, batch: {"loss": per_sample(state, batch)["loss"].mean()})
    with pytest.raises(ProgramError, match=r"not per sample: loss\n    shape \(\), expected \(16,\)"):
        outlay.evaluate(mean, state, problem.batch(16))
    with pytest.raises(ProgramError, match=r"not like the program's batch: 2 difference"):
        outlay.evaluate(
            reading_per_sample(), state, {"image": problem.batch(4)["image"], "y": problem.batch(4)["label"]}
        )


@pytest.mark.any_jax
def test_steps_of_the_other_kind_are_told_apart():
    with pytest.raises(ProgramError, match=r"returns a state, and with donate=False it only reads one"):
        reading(lambda state, batch: (state, {}))
    with pytest.raises(
        ProgramError, match=r"must return \(state, outputs\).*\n  fix: .*outlay.program\(..., donate=False"
    ):
        outlay.program(per_sample, problem.init, problem.batch(16), layout=LAYOUT, mesh="data=8")
    with pytest.raises(ProgramError, match="donate=False with mode manual"):
        reading(per_sample, mode="manual")


@pytest.mark.any_jax
@pytest.mark.some_cases(1)
@pytest.mark.parametrize("reduction", ["mean", pytest.param("sum", marks=pytest.mark.any_jax)])
def test_a_loss_of_one_number_a_batch_has_an_exact_mean_over_an_uneven_set(reduction):
    def loss(params, batch, keys):
        losses, metrics = problem.loss(params, batch, None)
        reduced = getattr(losses, reduction)()
        return reduced, {"accuracy": getattr(metrics["accuracy"].astype("float32"), reduction)()}

    step = train_step(loss, problem.OPTIMIZER, reduction=reduction)
    program = outlay.program(step, problem.init, problem.batch(16), layout=LAYOUT, mesh=outlay.mesh(data=8))
    state = program.init(jax.random.key(2))
    examples = problem.batch(37, seed=9)
    means = evaluate(program, state, examples, loss=loss, reduction=reduction)
    losses, metrics = problem.evaluated(jax.device_get(state.params), examples)
    np.testing.assert_allclose(means["loss"], losses.mean(), rtol=1e-6)
    np.testing.assert_allclose(means["accuracy"], metrics["accuracy"].mean(), rtol=1e-6)


def test_the_evaluation_parameters_of_a_schedule_free_optimizer_stay_split():
    optimizer = optax.contrib.schedule_free(optax.sgd(0.1), learning_rate=0.1, b1=0.9)

    def loss(params, batch, keys):
        return ((batch["x"] @ params["w"]) ** 2).mean(axis=1), {}

    init = outlay.init_state(lambda key: {"w": jax.random.normal(key, (8, 16))}, optimizer)
    batch = {"x": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)}
    program = outlay.program(train_step(loss, optimizer), init, batch, layout=LAYOUT, mesh=outlay.mesh(data=8))
    state = program.init(jax.random.key(0))
    for _ in range(3):
        state, _ = program(state, batch)
    average = jax.jit(optax.contrib.schedule_free_eval_params)(state.opt_state, state.params)
    assert average["w"].sharding.is_equivalent_to(state.params["w"].sharding, 2)
    means = evaluate(program, dataclasses.replace(state, params=average), batch, loss=loss)
    np.testing.assert_allclose(means["loss"], loss(jax.device_get(average), batch, None)[0].mean(), rtol=1e-5)
    assert abs(means["loss"] - float(loss(jax.device_get(state.params), batch, None)[0].mean())) > 1e-4


@pytest.mark.any_jax
def test_one_array_without_a_name_is_refused():
    program = reading(lambda state, batch: per_sample(state, batch)["loss"])
    with pytest.raises(ProgramError, match=r"no name: the bare array\n +it is one array\n +fix: return a dictionary"):
        evaluate(program, program.init(jax.random.key(0)), problem.batch(16))
