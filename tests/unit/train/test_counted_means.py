"""A mean over tokens in microbatches: of sums and counts, never of means."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.core.error_types import ProgramError

OPTIMIZER = optax.sgd(0.1)
RNG = np.random.default_rng(0)
BATCH = {
    "x": RNG.normal(size=(16, 6, 4)).astype(np.float32),
    # Samples of 1 to 6 tokens, so microbatches and devices count differently.
    "mask": np.arange(6)[None] < RNG.integers(1, 7, (16, 1)),
}


def init(key):
    return {"w": jax.random.normal(key, (4, 3))}


def sum_and_count(params, batch):
    each = jnp.sum((batch["x"] @ params["w"] - 1.0) ** 2, axis=-1)
    mask = batch["mask"].astype(jnp.float32)
    return jnp.sum(each * mask), jnp.sum(mask)


def by_counts(params, batch, keys):
    total, count = sum_and_count(params, batch)
    return (total, count), {"root": jnp.sqrt(total / count)}


def by_means(params, batch, keys):
    total, count = sum_and_count(params, batch)
    return total / count, {}


def plain():
    params = init(jax.random.split(jax.random.key(0))[0])
    loss, grads = jax.value_and_grad(lambda params: by_means(params, BATCH, None)[0])(params)
    return jax.device_get((jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss))


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("accumulate", [1, 2, 8])
def test_the_loss_is_the_mean_over_the_batch(accumulate):
    step = outlay.train_step(by_counts, OPTIMIZER, accumulate=accumulate, reduction="mean")
    state, metrics = jax.jit(step)(outlay.init_state(init, OPTIMIZER)(jax.random.key(0)), BATCH)
    params, loss = plain()
    np.testing.assert_allclose(state.params["w"], params["w"], rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)


@pytest.mark.some_cases(1)
@pytest.mark.compiles
@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_over_devices_too(mode):
    step = outlay.train_step(by_counts, OPTIMIZER, accumulate=2, reduction="mean")
    program = outlay.program(
        step,
        outlay.init_state(init, OPTIMIZER),
        BATCH,
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=4, model=2),
        mode=mode,
    )
    state, metrics = program(program.init(jax.random.key(0)), BATCH)
    params, loss = plain()
    np.testing.assert_allclose(state.params["w"], params["w"], rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)


def test_a_mean_of_means_is_refused():
    step = outlay.train_step(by_means, OPTIMIZER, accumulate=2, reduction="mean")
    with pytest.raises(ProgramError, match=r"accumulate=2 would be a mean of means.*\n  fix: return \(sum, count\)"):
        step(outlay.init_state(init, OPTIMIZER)(jax.random.key(0)), BATCH)


def test_a_pair_that_is_no_sum_and_count():
    def loss(params, batch, keys):
        return (sum_and_count(params, batch)[0], batch["mask"]), {}

    step = outlay.train_step(loss, OPTIMIZER, reduction="mean")
    with pytest.raises(ProgramError, match=r"one number for the batch"):
        step(outlay.init_state(init, OPTIMIZER)(jax.random.key(0)), BATCH)


def test_an_evaluation_in_several_batches_is_the_mean_over_all():
    """Of 16 examples in batches of 8, and of 19, of which the last 3 are a batch of their own."""
    first = {name: value[:8] for name, value in BATCH.items()}
    step = outlay.train_step(by_counts, OPTIMIZER, reduction="mean")
    program = outlay.program(
        step, outlay.init_state(init, OPTIMIZER), first, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8)
    )
    state = program.init(jax.random.key(0))
    for rows in (np.arange(16), np.arange(19) % 16):
        examples = {name: value[rows] for name, value in BATCH.items()}
        want = by_means(jax.device_get(state.params), examples, None)[0]
        got = outlay.evaluate(program, state, examples, loss=by_counts, reduction="mean")
        np.testing.assert_allclose(got["loss"], want, rtol=1e-6)
