"""Mode manual of a step that is not a `train_step`: all of it on pieces, its own collectives, its mistakes named."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # tests/contract/test_modes.py runs there

BATCH = np.arange(16, dtype=np.float32)
WHOLE, SPLIT = outlay.replicate(), P("data")


def program(step, *, w=WHOLE, mode="manual"):
    layout = outlay.Layout([("w", w)]) + outlay.data_parallel()
    return outlay.program(step, lambda key: {"w": jnp.arange(16.0)}, BATCH, layout=layout, mesh=MESH, mode=mode)


MESH = outlay.mesh(data=8)


def run(step, **choices):
    built = program(step, **choices)
    state, outputs = built(built.init(jax.random.key(0)), BATCH)
    return np.asarray(state["w"]), outputs


def error_of(step, **choices):
    with pytest.raises(outlay.errors.ProgramError) as caught:
        run(step, **choices)
    return str(caught.value)


def test_psum_and_pmean_give_what_one_device_gives():
    def step(state, batch):
        mean = jax.lax.pmean(batch.mean(), "data")
        return {"w": state["w"] - mean}, {"sum": jax.lax.psum(batch.sum(), "data"), "mean": mean}

    for w in (WHOLE, SPLIT):
        got, outputs = run(step, w=w)
        np.testing.assert_allclose(got, np.arange(16) - 7.5)
        assert {name: float(value) for name, value in outputs.items()} == {"sum": 120.0, "mean": 7.5}


def test_a_step_sees_pieces_of_what_the_plan_splits():
    seen = {}

    def step(state, batch):
        # Only within the mesh does an axis have a size; the shapes seen without one are not pieces.
        size = jax.lax.axis_size("data")
        seen.update(size=size, w=state["w"].shape, batch=batch.shape)
        return state, jnp.float32(0)

    run(step, w=SPLIT)
    assert seen == {"size": 8, "w": (2,), "batch": (2,)}


def test_a_step_without_collectives_may_run_in_either_mode():
    for mode in ("auto", "manual"):
        got, outputs = run(lambda state, batch: ({"w": state["w"] * 2}, None), w=SPLIT, mode=mode)
        np.testing.assert_array_equal(got, 2 * np.arange(16))
        assert outputs is None


@pytest.mark.parametrize(
    ("step", "where"),
    [
        (lambda state, batch: (state, {"sum": batch.sum()}), "1 array: outputs.sum over 'data';"),
        (lambda state, batch: ({"w": state["w"] + batch.sum()}, None), "1 array: w over 'data';"),
    ],
    ids=["an output", "state planned whole"],
)
def test_a_missing_reduction_is_refused_with_its_fix(step, where):
    message = error_of(step)
    assert "what it returns differs from device to device where it must not" in message
    assert "fix: reduce it before returning: jax.lax.psum(x, axis) or jax.lax.pmean(x, axis), axis of 'data'" in message
    assert where in message


def test_a_piece_gathered_and_returned_whole_is_refused():
    """It would pass for a leaf that is eight times as large."""

    def step(state, batch):
        return {"w": jax.lax.all_gather(state["w"], "data", tiled=True)}, None

    message = error_of(step, w=SPLIT)
    assert "returns a state unlike the one it took: 1 leaf differs\n  w: took float32[2], returned float32[16]" in (
        message
    )


def test_a_step_that_returns_no_pair_is_refused_though_only_pieces_show_it():
    def step(state, batch):
        return jax.lax.psum(state, "data")

    assert "the step step must return (state, outputs), a pair; it returned its state alone" in error_of(step)


@pytest.mark.parametrize(
    "collective",
    [
        lambda x: jax.lax.psum(x, "dat"),
        lambda x: jax.lax.pmean(x, ("data", "dat")),
        lambda x: jax.lax.all_gather(x, "dat"),
        lambda x: jax.lax.axis_index("dat"),
        lambda x: outlay.collectives.ring_shift(x, "dat"),
        lambda x: outlay.collectives.mean_over(x, 0, "dat"),
    ],
    ids=["psum", "pmean of two", "all_gather", "axis_index", "ring_shift", "mean_over"],
)
def test_an_unknown_axis_is_named_with_the_nearest(collective):
    message = error_of(lambda state, batch: (state, collective(batch)))
    assert "uses a collective over 'dat', which is not an axis of this mesh: did you mean 'data'?" in message


@pytest.mark.parametrize("error", [AssertionError("mine"), ValueError("mine")], ids=repr)
def test_errors_of_the_step_itself_pass_unchanged(error):
    def step(state, batch):
        jax.lax.axis_index("data")
        raise error

    with pytest.raises(type(error), match=r"^mine"):
        run(step)


def test_a_collective_in_mode_auto_is_refused_with_its_fix():
    message = error_of(lambda state, batch: (state, jax.lax.psum(batch.sum(), "data")), mode="auto")
    assert re.search(r"uses a collective over a mesh axis .*data.*, which only mode manual gives a meaning", message)
    assert 'fix: outlay.program(..., mode="manual"), or leave the collective out' in message


def test_an_unknown_mode_is_refused():
    with pytest.raises(outlay.errors.ProgramError, match="there is no mode 'manaul': did you mean 'manual'"):
        program(lambda state, batch: (state, None), mode="manaul")


def test_a_loss_with_a_collective_of_its_own_is_refused():
    """The step sums over the batch by itself: the gradient would be eight times too large."""

    def loss(params, batch, keys):
        return jax.lax.psum(params["w"][0] * batch, "data"), {}

    optimizer = optax.sgd(1.0)
    init = outlay.init_state(lambda key: {"w": jnp.ones(16)}, optimizer)
    with pytest.raises(
        outlay.errors.ProgramError,
        match=r"the loss of the step step uses a collective.* samples would be summed twice\n  fix: leave the coll",
    ):
        outlay.program(
            outlay.train_step(loss, optimizer), init, BATCH, layout=outlay.data_parallel(), mesh=MESH, mode="manual"
        )


def test_mode_manual_on_explicit_axes_is_refused_with_the_fix():
    with pytest.raises(outlay.errors.ProgramError, match="mode manual takes a mesh with automatic axes") as caught:
        outlay.program(
            lambda state, batch: (state, {}),
            lambda key: jnp.zeros(8),
            np.ones(8, np.float32),
            layout=outlay.data_parallel(),
            mesh=outlay.mesh(data=8, explicit=True),
            mode="manual",
        )
    assert "fix: outlay.mesh(...) without explicit=True" in str(caught.value)


def test_a_step_without_a_name_of_its_own_is_named_in_messages_too():
    def scaled(factor, state, batch):
        return state, {"mean": factor * batch.mean()}

    with pytest.raises(outlay.errors.ProgramError, match="in mode manual the step partial"):
        program(functools.partial(scaled, 2.0))
