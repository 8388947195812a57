"""A sample of weight 0 is as if it were not there, whatever it holds."""

import typing

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.core.error_types import ProgramError

OPTIMIZER = optax.adam(0.1)
RNG = np.random.default_rng(0)
SHORT = {
    "x": RNG.normal(size=(8, 4)).astype(np.float32),
    "mask": np.ones((8, 8), bool),
    "label": RNG.integers(0, 4, 8).astype(np.int32),
}


def init(key):
    return {"w": jax.random.normal(key, (4, 8)), "b": jnp.zeros(8)}


def mean_over_tokens(params, batch, keys):
    """0/0 where the mask is empty, in the backward pass, too."""
    each = (jnp.tanh(batch["x"]) @ params["w"] + params["b"][None]) ** 2
    mask = batch["mask"].astype(jnp.float32)
    return jnp.sum(each * mask, axis=1) / jnp.sum(mask, axis=1), {"largest": each.max(axis=1)}


def logarithm(params, batch, keys):
    """Infinite where the features are zero, and of NaN where they are not numbers."""
    length = jnp.sqrt(jnp.sum((batch["x"] @ params["w"]) ** 2, axis=1))
    return jnp.log(length) + params["b"].sum(), {"length": length}


def with_statistics(params, model_state, batch, keys):
    """BatchNorm's mean would be NaN, with every sample's loss."""
    x = batch["x"] - batch["x"].mean(axis=0, keepdims=True)
    losses, metrics = mean_over_tokens(params, {**batch, "x": x}, keys)
    return losses, metrics, {"mean": model_state["mean"] * 0.5}


def padded(**odd):
    """Samples that do not count lie first, in between and at the end, so that some devices hold no other."""
    rows = np.array([0, 0, 0, 0, 0, 1, 2, 3, 4, 4, 5, 6, 7, 0, 0, 0])
    weight = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0], np.float32)
    batch = {name: value[rows] for name, value in SHORT.items()} | {"weight": weight}
    for name, value in odd.items():
        batch[name][weight == 0] = value
    return batch


CASES = {
    "an empty mask": (mean_over_tokens, padded(mask=False)),
    "not a number": (mean_over_tokens, padded(x=np.nan)),
    "zeros": (logarithm, padded(x=0.0)),
    "infinite": (logarithm, padded(x=np.inf)),
}


def trained(loss, batch, **how):
    """Two steps from one state, as one device takes them."""
    step, state = (
        jax.jit(outlay.train_step(loss, OPTIMIZER, **how)),
        outlay.init_state(init, OPTIMIZER)(jax.random.key(0)),
    )
    for _ in range(2):
        state, metrics = step(state, batch)
    return jax.device_get((state.params, metrics))


def assert_close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), jax.device_get(got), want)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("case", CASES)
def test_a_sample_of_weight_zero_changes_nothing(case):
    loss, batch = CASES[case]
    want = trained(loss, SHORT)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(want))
    assert_close(trained(loss, batch), want)
    assert_close(trained(loss, batch, accumulate=4), want)


@pytest.mark.thorough  # test_modes.py pads so
@pytest.mark.compiles
@pytest.mark.parametrize("mode", ["auto", "manual", "explicit"])
def test_devices_that_hold_no_other_sample(mode):
    """With 8 devices, four of them; with two microbatches, devices whose samples do not count are elsewhere."""
    loss, batch = CASES["an empty mask"]
    meshes = (outlay.mesh(data=8), 1), (outlay.mesh(data=4, model=2), 2)
    if mode == "explicit":
        meshes, mode = ((outlay.mesh(data=8, explicit=True), 1),), "auto"
    for mesh, accumulate in meshes:
        step = outlay.train_step(loss, OPTIMIZER, accumulate=accumulate)
        # On Explicit axes a product with split parameters asks the loss where its result lives.
        whole = any(kind == jax.sharding.AxisType.Explicit for kind in mesh.axis_types)
        layout = outlay.data_parallel() if whole else outlay.fsdp(min_size=8) + outlay.data_parallel()
        program = outlay.program(step, outlay.init_state(init, OPTIMIZER), batch, layout=layout, mesh=mesh, mode=mode)
        state = program.init(jax.random.key(0))
        for _ in range(2):
            state, metrics = program(state, batch)
        assert_close((state.params, metrics), trained(loss, SHORT))


def test_statistics_of_the_batch_do_not_depend_on_what_it_holds():
    def run(batch):
        step = jax.jit(outlay.train_step(with_statistics, OPTIMIZER, model_state=True))
        made = outlay.init_state(lambda key: (init(key), {"mean": jnp.zeros(4)}), OPTIMIZER, model_state=True)
        return jax.device_get(step(made(jax.random.key(0)), batch)[0].params)

    assert_close(run(padded(x=np.nan)), run(padded(x=7.0)))


def test_a_sample_that_counts_still_poisons():
    batch = padded(x=0.0)
    batch["x"][5] = np.nan
    params, metrics = trained(logarithm, batch)
    assert np.isnan(metrics["loss"])
    assert np.isnan(params["w"]).any()


class Batch(typing.NamedTuple):
    x: np.ndarray
    mask: np.ndarray
    label: np.ndarray
    weight: np.ndarray


def test_the_weight_may_be_a_field():
    loss, batch = CASES["an empty mask"]

    def of_fields(params, batch, keys):
        return loss(params, batch._asdict(), keys)

    assert_close(trained(of_fields, Batch(**batch)), trained(loss, SHORT))


@pytest.mark.parametrize("weight", [np.ones((16, 1), np.float32), np.ones(16, np.complex64)])
def test_a_weight_that_is_no_number_per_sample(weight):
    with pytest.raises(ProgramError, match=r"batch\.weight is .*of 16 samples counts\n  fix: one real number"):
        trained(mean_over_tokens, padded() | {"weight": weight})


def test_keys_in_the_batch_and_every_dtype():
    from outlay.train.objective import without_uncounted

    weights = jnp.array([0.0, 2.0, 0.0, 1.0])
    batch = {
        "weight": weights,
        "key": jax.random.split(jax.random.key(0), 4),
        **{str(dtype): jnp.arange(4).astype(dtype) for dtype in ("bool", "int8", "uint32", "bfloat16", "complex64")},
    }
    made = without_uncounted(batch, weights)
    assert (made["key"] == batch["key"][jnp.array([1, 1, 1, 3])]).all()
    assert made["weight"] is weights
    for name in batch.keys() - {"key", "weight"}:
        assert made[name].dtype == batch[name].dtype
        assert made[name].tolist() == batch[name][jnp.array([1, 1, 1, 3])].tolist()


def test_evaluation_leaves_it_out():
    batch = padded(mask=False)
    step, start = outlay.train_step(mean_over_tokens, OPTIMIZER), outlay.init_state(init, OPTIMIZER)
    program = outlay.program(step, start, batch, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8))
    state = program.init(jax.random.key(0))
    want, metrics = mean_over_tokens(jax.device_get(state.params), SHORT, None)
    got = outlay.evaluate(program, state, batch, loss=mean_over_tokens)
    assert got == pytest.approx({"loss": float(want.mean()), "largest": float(metrics["largest"].mean())}, rel=1e-5)

    reads = outlay.program(
        lambda params, batch: {"loss": mean_over_tokens(params, batch, None)[0]},
        init,
        batch,
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
        donate=False,
    )
    params = jax.device_put(jax.device_get(state.params))
    assert outlay.evaluate(reads, params, batch) == pytest.approx({"loss": float(want.mean())}, rel=1e-5)
