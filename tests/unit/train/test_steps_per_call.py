"""Several steps in one compiled call compute what as many calls do, in every mode that trains."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.core.error_types import ProgramError
from outlay.program.multi_step import several_steps
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.loop import fit

pytestmark = [pytest.mark.newest, pytest.mark.compiles]

NUM_STEPS = 10
RNG = np.random.default_rng(0)
EXAMPLES = {"x": RNG.normal(size=(64, 8)).astype(np.float32), "y": RNG.normal(size=(64, 4)).astype(np.float32)}
DATA = outlay.TrainData(EXAMPLES, batch_size=16, seed=0)
LAYOUT = outlay.fsdp(min_size=8) + outlay.data_parallel()


def init_params(key):
    return {"kernel": 0.1 * jnp.sin(jnp.arange(128.0)).reshape(8, 16), "out": jnp.full((16, 4), 0.1)}


def loss(params, batch, keys):
    hidden = jnp.tanh(batch["x"] @ params["kernel"])
    if keys is not None:
        hidden = hidden * jax.vmap(lambda key: jax.random.bernoulli(key, 0.9, (16,)))(keys)
    return jnp.square(hidden @ params["out"] - batch["y"]).mean(axis=1), {"size": jnp.square(hidden).mean(axis=1)}


@functools.cache
def training(mode="auto", accumulate=1):
    """Compiled once for all tests."""
    optimizer = optax.adam(1e-2)
    step = outlay.train_step(loss, optimizer, accumulate=accumulate)
    init = outlay.init_state(init_params, optimizer)
    mesh = outlay.mesh(data=8)
    return outlay.program(step, init, DATA[0], layout=LAYOUT, mesh=mesh, mode=mode)


def run(program, data=DATA, steps=NUM_STEPS, **options):
    return fit(program, data, steps=steps, key=jax.random.key(0), progress=False, **options)


def assert_same(left, right):
    for one, other in zip(jax.tree.leaves(left.state), jax.tree.leaves(right.state), strict=True):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert one.sharding.is_equivalent_to(other.sharding, one.ndim)
    assert [m["step"] for m in left.history] == [m["step"] for m in right.history]
    for name in ("loss", "size"):
        np.testing.assert_allclose(
            [m[name] for m in left.history], [m[name] for m in right.history], rtol=1e-5, atol=1e-7
        )


@pytest.mark.any_jax
def test_four_steps_a_call_compute_what_single_steps_do():
    """By hand and in microbatches; in mode auto they go on from a checkpoint below."""
    program = training("manual", accumulate=2)
    assert_same(run(program, steps_per_call=4), run(program))


def test_a_step_that_is_manual_as_a_whole_is_repeated_too():
    def step(state, batch):
        return state + jax.lax.psum(batch.sum(), "data"), {"largest": jax.lax.pmax(batch.max(), "data")}

    program = outlay.program(
        step, lambda key: 0.0, np.ones(8), layout=outlay.data_parallel(), mesh=outlay.mesh(data=8), mode="manual"
    )
    done = run(program, [np.full(8, float(number)) for number in range(6)], steps=6, steps_per_call=3)
    assert (float(done.state), [m["largest"] for m in done.history]) == (120.0, [0, 1, 2, 3, 4, 5])


@pytest.mark.thorough  # test_fit_options.py has both, in processes
@pytest.mark.any_jax
def test_calls_end_where_evaluations_and_checkpoints_are_due(tmp_path):
    seen = []
    program = training()
    done = run(
        program,
        steps_per_call=4,
        evaluate=lambda program, state: {"step": int(state.step)},
        evaluate_every=5,
        checkpoints=Checkpoints(tmp_path / "saved"),
        checkpoint_every=6,
        metrics_path=tmp_path / "metrics.jsonl",
        on_step=lambda metrics: seen.append(metrics["step"]),
    )
    assert {m["step"]: m["evaluate.step"] for m in done.history if "evaluate.step" in m} == {5: 5, 10: 10}
    assert seen == [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert seen == list(range(1, 11))
    step, state = Checkpoints(tmp_path / "saved").restore(program, step=6)
    assert_same(run(program, start=(step, state), steps_per_call=4), run(program, start=_again(tmp_path, program)))


def _again(tmp_path, program):
    return Checkpoints(tmp_path / "saved").restore(program, step=6)


@pytest.mark.any_jax
def test_training_that_is_ended_ends_with_its_call():
    done = run(training(), steps_per_call=4, on_step=lambda metrics: metrics["step"] == 2)
    # Two calls are under way at a time, so the next one has begun.
    assert done.history[-1]["step"] == 8


def test_outputs_are_stacked_and_the_state_keeps_its_sharding():
    program = training()
    several = several_steps(program, 2)
    state, outputs = several(program.init(jax.random.key(0)), [DATA[0], DATA[1]])
    assert state.params["kernel"].sharding.spec == program.plan["params.kernel"].spec
    assert outputs["loss"].shape == (2,)


@pytest.mark.any_jax
def test_programs_that_cannot_be_repeated_are_refused():
    with pytest.raises(ProgramError, match=r"steps_per_call=0: a call needs at least 1 step"):
        run(training(), steps_per_call=0)
    reads = outlay.program(
        lambda state, batch: {"mean": batch["x"].mean()},
        lambda key: 0.0,
        DATA[0],
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
        donate=False,
    )
    with pytest.raises(ProgramError, match=r"this program cannot run several steps in a call: it only reads"):
        several_steps(reads, 2)


@pytest.mark.any_jax
def test_a_batch_of_another_shape_is_named():
    program = training()
    other = {"x": np.zeros((16, 9), np.float32), "y": np.zeros((16, 4), np.float32)}
    with pytest.raises(ProgramError, match=r"batch\.x"):
        run(program, [DATA[0], other, DATA[0], DATA[0]], steps=4, steps_per_call=2)
