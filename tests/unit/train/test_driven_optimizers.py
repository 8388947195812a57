"""Optimizers that take more than the gradient of the mean loss, or something else: right, or refused in words."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import outlay
from outlay.core.error_types import ProgramError

BATCH = {
    "x": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32),
    "y": np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32),
}


def init(key):
    return {"w": jax.random.normal(key, (8, 8)), "b": jnp.zeros(8)}


def loss(params, batch, keys):
    params = getattr(params, "fast", params)
    return jnp.mean((batch["x"] @ params["w"] + params["b"][None] - batch["y"]) ** 2, axis=1), {}


def mean_loss(params, batch=BATCH):
    return loss(params, batch, None)[0].mean()


def by_hand(optimizer, params, gradients, **extras):
    """Three steps in plain optax."""
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(gradients(params), state, params, **extras)
        return optax.apply_updates(params, updates), state

    for _ in range(3):
        params, state = step(params, state)
    return jax.device_get(params)


def by_outlay(optimizer, made=init, mode=None, layout=None, **how):
    step, start = outlay.train_step(loss, optimizer, **how), outlay.init_state(made, optimizer)
    if mode is None:
        step, state = jax.jit(step), start(jax.random.key(0))
    else:
        mesh = outlay.mesh(data=4, model=2)
        step = outlay.program(step, start, BATCH, layout=layout or outlay.data_parallel(), mesh=mesh, mode=mode)
        state = step.init(jax.random.key(0))
    for _ in range(3):
        state, _ = step(state, BATCH)
    return jax.device_get(state.params)


def assert_close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, want)


FIRST = init(jax.random.split(jax.random.key(0))[0])
ASCENT = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("is_chained", [False, True])
def test_sharpness_aware_minimization(is_chained):
    """Its type says that it takes any argument, and it takes none: also where `chain` passes all of them on."""
    optimizer = optax.contrib.sam(optax.sgd(0.1), ASCENT, sync_period=2)
    optimizer = optax.chain(optax.clip(10.0), optimizer) if is_chained else optimizer
    assert_close(by_outlay(optimizer), by_hand(optimizer, FIRST, jax.grad(mean_loss)))


@pytest.mark.some_cases(2)
@pytest.mark.compiles
@pytest.mark.parametrize("mode", [None, "auto", "manual"])
def test_sharpness_aware_minimization_that_takes_gradients_itself(mode):
    optimizer = optax.contrib.sam(optax.sgd(0.1), ASCENT, sync_period=2, opaque_mode=True)
    want = by_hand(optimizer, FIRST, jax.grad(mean_loss), grad_fn=lambda params, _: jax.grad(mean_loss)(params))
    assert_close(by_outlay(optimizer, mode=mode), want)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("mode", [None, pytest.param("manual", marks=pytest.mark.compiles)])
def test_lookahead(mode):
    optimizer = optax.lookahead(optax.adam(0.1), sync_period=2, slow_step_size=0.5)
    synced = optax.LookaheadParams.init_synced
    want = by_hand(optimizer, synced(FIRST), lambda params: jax.grad(mean_loss)(params.fast))
    assert_close(by_outlay(optimizer, lambda key: synced(init(key)), mode=mode), want)


PRIVATE = optax.chain(
    optax.contrib.differentially_private_aggregate(0.5, 0.1, jax.random.key(7)), optax.sgd(0.1, momentum=0.9)
)


@pytest.mark.some_cases(1)
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("mode", "layout"),
    [
        (None, None),
        ("auto", outlay.fsdp(min_size=8) + outlay.data_parallel()),
        ("manual", outlay.fsdp(min_size=8) + outlay.data_parallel()),
        ("manual", outlay.zero2(min_size=8) + outlay.data_parallel()),
    ],
)
def test_private_training_is_that_of_plain_jax(mode, layout):
    def per_example(params):
        def one(params, x, y):
            return mean_loss(params, {"x": x[None], "y": y[None]})

        return jax.vmap(jax.grad(one), (None, 0, 0))(params, BATCH["x"], BATCH["y"])

    want = by_hand(PRIVATE, FIRST, per_example)
    assert_close(by_outlay(PRIVATE, mode=mode, layout=layout, per_example_gradients=True), want)


def test_private_training_without_gradients_per_example_is_refused():
    """Here the first dims agree, so optax would take the rows of the kernel for examples."""
    with pytest.raises(ProgramError, match=r"one gradient per example.*\n  fix: .*per_example_gradients=True"):
        by_outlay(PRIVATE)


def test_an_aggregator_of_ones_own_is_known_by_its_updates():
    own = optax.stateless(lambda grads, params: jax.tree.map(lambda g: -g.mean(axis=0), grads))
    message = r"(?s)2 problems.*params\.b.*shape \(8,\), its update \(\).*per_example_gradients=True"
    with pytest.raises(ProgramError, match=message):
        by_outlay(own)
    assert_close(by_outlay(own, per_example_gradients=True), by_outlay(optax.sgd(1.0)))


def test_gradients_per_example_for_an_optimizer_that_takes_a_mean():
    with pytest.raises(ProgramError, match=r"(?s)params\.b.*shape \(8,\), its update \(16, 8\).*leave out per_example"):
        by_outlay(optax.sgd(0.1), per_example_gradients=True)
    with pytest.raises(ProgramError, match=r"per_example_gradients with accumulate=2, reduction='mean': every sample"):
        outlay.train_step(loss, PRIVATE, per_example_gradients=True, accumulate=2, reduction="mean")


@pytest.mark.thorough  # test_uncounted.py has weights
def test_weights_of_examples_scale_their_gradients():
    total = optax.stateless(lambda grads, params: jax.tree.map(lambda g: -g.sum(axis=0), grads))
    weight = np.array([0.0] * 8 + [1.0] * 8, np.float32)
    step = outlay.train_step(loss, total, per_example_gradients=True, metrics=["grad_norm"])
    start = outlay.init_state(init, total)
    state, metrics = step(start(jax.random.key(0)), {**BATCH, "weight": weight})
    half = {name: value[8:] for name, value in BATCH.items()}
    want, grads = jax.value_and_grad(mean_loss)(FIRST, half)
    assert_close(state.params, jax.tree.map(lambda p, g: p - 8 * g, FIRST, grads))
    np.testing.assert_allclose(metrics["loss"], want, rtol=1e-6)
    np.testing.assert_allclose(metrics["grad_norm"], optax.tree.norm(grads) / 2, rtol=1e-5)  # over 16 samples


def test_what_an_optimizer_raises_comes_in_words():
    def odd(updates, state, params):
        raise ValueError("different structures")

    with pytest.raises(ProgramError, match=r"the optimizer cannot update: different structures; .*grad_fn="):
        by_outlay(optax.GradientTransformation(lambda params: optax.EmptyState(), odd))
