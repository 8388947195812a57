"""Losses that mix samples or keep state train in every mode as on one device: batch statistics, contrasts, sums.

One device's numbers are plain JAX's, without a layout. Every loss here would come out otherwise if each device took
only its own samples for the batch. Every loss is tried in both modes, in turn with a whole batch and with two
microbatches; in mode manual half of them with parameters that are whole, and half with split ones, whose gathers do not
depend on the loss.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay

pytestmark = pytest.mark.newest

RNG = np.random.default_rng(0)
BATCH = {
    "x": RNG.normal(size=(32, 8)).astype(np.float32),
    "y": RNG.normal(size=(32, 4)).astype(np.float32),
    "weight": (np.arange(32) < 27).astype(np.float32),
}
PARAMS = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in {"a": (8, 16), "b": (4, 16)}.items()}
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
LAYOUTS = {
    "dp": outlay.data_parallel(),
    "fsdp": outlay.fsdp(min_size=16) + outlay.data_parallel(),
}


def with_batch_norm(params: Any, state: Any, batch: Any, keys: Any) -> Any:
    hidden = batch["x"] @ params["a"]
    mean, var = hidden.mean(0), hidden.var(0)
    new = {"mean": 0.9 * state["mean"] + 0.1 * mean, "seen": state["seen"] + 1}
    normal = (hidden - mean[None]) * jax.lax.rsqrt(var + 1e-3)[None]
    errors = (jax.nn.relu(normal) @ params["b"].T - batch["y"]) ** 2
    return errors.mean(1), {"by_output": errors}, new


def contrastive(params: Any, batch: Any, keys: Any) -> Any:
    x, y = batch["x"] @ params["a"], batch["y"] @ params["b"]
    scores = (x / jnp.linalg.norm(x, axis=1, keepdims=True)) @ outlay.whole_batch(y).T
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(len(x)))
    return losses, {"nearest": jax.nn.one_hot(scores.argmax(1) % 4, 4), "norm": jnp.linalg.norm(x, axis=1)}


def masked_mean(params: Any, batch: Any, keys: Any) -> Any:
    """With what mode manual can only do by gathering (a median), and one draw for the whole batch."""
    weight = batch["weight"] * jax.random.bernoulli(keys[0], 0.5, batch["weight"].shape)
    losses = ((batch["x"] @ params["a"] - batch["y"] @ params["b"]) ** 2).mean(1)
    return ((losses * weight).sum(), weight.sum()), {"median": jnp.median(losses)}


def product_over_samples(params: Any, batch: Any, keys: Any) -> Any:
    """A correlation of features, in a loop, recomputed in the backward pass."""

    @jax.checkpoint
    def layer(x: Any, _: Any) -> tuple[Any, Any]:
        x = x - x.mean(0)[None]
        return x @ (x.T @ x) / len(x), None

    x, _ = jax.lax.scan(layer, batch["x"] @ params["a"] / 4, None, length=2)
    return (x**2).sum() / 100, {}


CASES = {
    "batch norm": (with_batch_norm, {"model_state": True}),
    "batch norm by groups": (with_batch_norm, {"model_state": True, "groups": 8}),
    "contrastive": (contrastive, {}),
    "masked mean": (masked_mean, {"reduction": "mean", "metrics": ["grad_norm", "param_norm", "update_norm"]}),
    "sum": (product_over_samples, {"reduction": "sum"}),
}


ON_NEWEST_JAX = {("batch norm", "auto"), ("contrastive", "manual"), ("sum", "manual")}


def cases() -> list[Any]:
    """Every case in both modes, with one batch or two in turn; on the newest JAX each case in one mode."""
    every = []
    for row, case in enumerate(CASES):
        for column, (layout, mode) in enumerate([("fsdp", "auto"), (("dp", "fsdp")[row % 2], "manual")]):
            marks = [] if (case, mode) in ON_NEWEST_JAX else [pytest.mark.any_jax]
            every.append(pytest.param(case, layout, mode, 1 + (row // 2 + column) % 2, marks=marks))
    return every


def _step_and_init(case: str, accumulate: int) -> Any:
    loss, how = CASES[case]
    has_state = how.get("model_state", False)
    state = {"mean": jnp.zeros(16), "seen": jnp.zeros((), jnp.int32)}

    def init(key: Any) -> Any:
        params = jax.tree.map(jnp.asarray, PARAMS)
        return (params, state) if has_state else params

    step = outlay.train_step(loss, OPTIMIZER, accumulate=accumulate, **how)
    return step, outlay.init_state(init, OPTIMIZER, model_state=has_state)


@functools.cache
def _one_device(case: str, accumulate: int) -> Any:
    step, init = _step_and_init(case, accumulate)
    state = init(jax.random.key(0))
    for _ in range(2):
        state, metrics = jax.jit(step)(state, BATCH)
    return jax.device_get((state.params, state.opt_state, state.model_state, metrics))


@pytest.mark.some_cases(3, newest=1)
@pytest.mark.parametrize(("case", "layout", "mode", "accumulate"), cases())
def test_every_loss_trains_as_on_one_device(case: str, layout: str, mode: Any, accumulate: int) -> None:
    step, init = _step_and_init(case, accumulate)
    mesh = outlay.mesh(data=4, model=2) if accumulate == 1 else outlay.mesh(data=8)
    program = outlay.program(step, init, BATCH, layout=LAYOUTS[layout], mesh=mesh, mode=mode)
    state = program.init(jax.random.key(0))
    for _ in range(2):
        state, metrics = program(state, BATCH)
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5),
        (state.params, state.opt_state, state.model_state, metrics),
        _one_device(case, accumulate),
    )


@pytest.mark.any_jax
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_loss_of_independent_samples_is_the_same_in_microbatches(reduction: str) -> None:
    """Above, one device has as many microbatches as the others, so a wrong share of each would be nowhere else."""

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        errors = (batch["x"] @ params["a"] - batch["y"] @ params["b"]) ** 2
        absolute = getattr(jnp.abs(errors), reduction)()  # a number for the batch, as the loss
        total = errors.sum() if reduction == "sum" else (errors.sum(), jnp.float32(len(errors)))
        return total, {"absolute": absolute, "rate": 0.25, "one": 1}

    def trained(accumulate: int) -> Any:
        step = outlay.train_step(loss, optax.sgd(1e-3), accumulate=accumulate, reduction=reduction)
        state = outlay.init_state(lambda key: jax.tree.map(jnp.asarray, PARAMS), optax.sgd(1e-3))(jax.random.key(0))
        state, metrics = jax.jit(step)(state, {name: BATCH[name] for name in "xy"})
        return jax.device_get((state.params, metrics))

    jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-4), trained(4), trained(1))


@pytest.mark.any_jax
def test_metrics_of_a_sum_are_summed_over_microbatches_as_the_proof_has_them() -> None:
    def loss(params: Any, batch: Any, keys: Any) -> Any:
        errors = (batch["x"] @ params["a"]) ** 2
        return errors.sum(), {"absolute": jnp.abs(errors).sum(), "rate": 0.25}

    step = outlay.train_step(loss, optax.sgd(1e-3), accumulate=2, reduction="sum")
    init = outlay.init_state(lambda key: {"a": jnp.asarray(PARAMS["a"])}, optax.sgd(1e-3))
    batch = {"x": BATCH["x"]}
    program = outlay.program(step, init, batch, layout=LAYOUTS["fsdp"], mesh=outlay.mesh(data=8))
    assert outlay.verify(program, batches=[batch], steps=1).ok


def test_statistics_by_groups_are_others_than_over_the_batch() -> None:
    """Else the row above would say nothing about groups."""
    whole, groups = (_one_device(case, 1)[3]["loss"] for case in ("batch norm", "batch norm by groups"))
    assert abs(whole - groups) > 1e-2


@pytest.mark.thorough  # the losses train as on one device above
@pytest.mark.any_jax
@pytest.mark.parametrize("case", ["batch norm", "contrastive", "sum"])
def test_every_loss_is_proved(case: str) -> None:
    step, init = _step_and_init(case, 1)
    program = outlay.program(step, init, BATCH, layout=LAYOUTS["fsdp"], mesh=outlay.mesh(data=8), mode="manual")
    assert outlay.verify(program, batches=[BATCH], steps=1).ok
