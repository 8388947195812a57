"""Faults planted in what Outlay makes of a step: the reference shares no code with it, so it says "different"."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import outlay
from outlay.analysis.verify.reference.plain_loop import PlainLoop
from outlay.analysis.verify.reference.user_step import UserStep
from outlay.core.as_written import AsWritten, LossAsWritten
from outlay.train import gradients, step
from outlay.train.objective import Objective

pytestmark = pytest.mark.compiles

RNG = np.random.default_rng(0)
BATCH = {
    "x": RNG.normal(size=(16, 4)).astype(np.float32),
    "y": RNG.normal(size=16).astype(np.float32),
    "weight": np.linspace(0.1, 2, 16).astype(np.float32),
}
OPTIMIZER = optax.sgd(1e-2)


def loss(params: Any, batch: Any, keys: Any) -> Any:
    dropped = jax.vmap(lambda key: jax.random.bernoulli(key, 0.8, (4,)))(keys) * batch["x"]
    errors = (dropped @ params["w"] + params["b"] - batch["y"]) ** 2
    return errors, {"errors": errors}


def trained(*, accumulate: int = 2, mode: Any = "auto") -> outlay.Program:
    return outlay.program(
        outlay.train_step(loss, OPTIMIZER, accumulate=accumulate, metrics=["grad_norm", "param_norm", "update_norm"]),
        outlay.init_state(lambda key: {"w": jax.random.normal(key, (4,)), "b": jnp.zeros(())}, OPTIMIZER),
        BATCH,
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(devices=jax.devices()[:2], data=2),
        mode=mode,
    )


def verified(program: outlay.Program, batch: Any = None) -> outlay.analysis.Verification:
    return outlay.verify(program, batches=[BATCH if batch is None else batch])


@pytest.mark.thorough  # test_verify.py and contracts have right steps
@pytest.mark.parametrize(("accumulate", "mode"), [(2, "auto"), (1, "manual")])
def test_the_right_step_is_the_same(accumulate: int, mode: Any) -> None:
    verification = verified(trained(accumulate=accumulate, mode=mode))
    verification.raise_if_different()
    assert {check.kind for check in verification.checks} == {"gradient", "output", "state"}
    assert "jax.value_and_grad of the mean over the whole batch" in verification.reference


def a_dropped_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gradients.strided
    monkeypatch.setattr(gradients, "strided", lambda x, num: right(x, num).at[-1].set(right(x, num)[0]))


def a_doubled_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    right = step.gradient_of_sums

    def doubled(*args: Any) -> Any:
        grads, *others = right(*args)
        return jax.tree.map(lambda g: 2 * g, grads), *others

    monkeypatch.setattr(step, "gradient_of_sums", doubled)


def a_mean_of_means(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Objective.sums

    def means(*args: Any) -> Any:
        sums, state = right(*args)
        return {name: value / sums["weight"] for name, value in sums.items()}, state

    monkeypatch.setattr(Objective, "sums", means)


def weights_that_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "sample_weights", lambda batch, num: jnp.ones(num))


def keys_by_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every microbatch numbers its samples from 0, so all have the same dropout masks."""
    right = Objective.sums

    def same(self: Objective, params: Any, state: Any, batch: Any, keys: Any, weights: Any) -> Any:
        return right(self, params, state, batch, jax.vmap(jax.random.key)(jnp.arange(len(weights))), weights)

    monkeypatch.setattr(Objective, "sums", same)


PLANTED = [a_dropped_microbatch, a_doubled_sum, a_mean_of_means, weights_that_do_not_count, keys_by_microbatch]


@pytest.mark.some_cases(1)  # the judge compares, whatever the fault
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_fault_of_train_step_is_different(plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    verification = verified(trained())
    assert verification.verdict == "different"
    assert verification.wrong[0].path.startswith("grads.")


@pytest.mark.thorough  # test_overwritten.py has them
def test_statistics_that_are_summed_like_gradients_are_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of FP8: what stands in place of a gradient is the largest entry of the batch, and nothing may divide it."""

    @jax.custom_vjp
    def scaled(x: jax.Array, largest: jax.Array) -> jax.Array:
        return x * 2

    def backward(x: jax.Array, cotangent: jax.Array) -> Any:
        return cotangent * 2, jnp.abs(x).max()

    scaled.defvjp(lambda x, largest: (x * 2, x), backward)

    def loss(params: Any, batch: Any, keys: Any) -> Any:
        seen = params["_overwrite_with_gradient"]["largest"]
        return (scaled(batch["x"], seen) @ params["w"] - batch["y"]) ** 2, {}

    def init(key: Any) -> Any:
        return {"w": jax.random.normal(key, (4,)), "_overwrite_with_gradient": {"largest": jnp.ones(())}}

    def program() -> outlay.Program:
        return outlay.program(
            outlay.train_step(loss, optax.sgd(0.1)),
            outlay.init_state(init, optax.sgd(0.1)),
            BATCH,
            layout=outlay.data_parallel(),
            mesh=outlay.mesh(devices=jax.devices()[:2], data=2),
        )

    verified(program()).raise_if_different()
    monkeypatch.setattr(step, "overwritten_paths", lambda params: frozenset())
    wrong = {check.path for check in verified(program()).wrong}
    assert "params._overwrite_with_gradient.largest" in wrong


class Tied(nnx.Module):
    """One variable at two places: the second use is the transposed first."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Param(jax.random.normal(rngs.params(), (4, 4)))
        self.second = self.first

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ self.first[...]) @ self.second[...].T


def tied_step(model: Tied, batch: Any) -> Any:
    value, grads = nnx.value_and_grad(lambda model: ((model(batch["x"]) - 1) ** 2).mean())(model)
    nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model), grads))
    return model, {"loss": value}


def made_otherwise(step: Any, init: Any, written: AsWritten) -> outlay.Program:
    """Return a program that Outlay has made of another step than the user wrote."""
    mesh = outlay.mesh(devices=jax.devices()[:2], data=2)
    return outlay.Program(step, init, BATCH, outlay.data_parallel(), mesh, written=written)


def test_a_variable_at_two_places_that_comes_apart_is_different() -> None:
    def tied(key: Any) -> Tied:
        return Tied(nnx.Rngs(key))

    def untied(key: Any) -> Any:
        first = tied(key).first[...]
        return {"first": first, "second": first}

    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            return ((jnp.tanh(batch["x"] @ params["first"]) @ params["second"].T - 1) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), {"loss": value}

    verification = verified(made_otherwise(step, untied, AsWritten(tied_step, tied)))
    assert {check.path for check in verification.wrong} >= {"first", "second"}
    assert "first" in {check.path for check in verification.wrong if check.step == 1}


def test_tied_weights_as_written_are_judged_as_nnx_jit_takes_them() -> None:
    """One array at two places: what trains one of them trains the other."""
    one = UserStep(AsWritten(tied_step, lambda key: Tied(nnx.Rngs(key))), PlainLoop(), only_reads=False)
    leaves = one.init(jax.random.key(0))
    assert one.state.places == [("first", 0), ("second", 0)]
    (new,), (loss,), _ = jax.jit(one.step)(leaves, BATCH)
    model = Tied(nnx.Rngs(jax.random.key(0)))
    right = nnx.jit(lambda model: tied_step(model, BATCH)[1]["loss"])(model)
    np.testing.assert_allclose(loss, right, rtol=1e-6)
    np.testing.assert_allclose(new, model.first[...], rtol=1e-5, atol=1e-6)


def test_an_init_that_the_program_makes_otherwise_is_different() -> None:
    def step(state: Any, batch: Any) -> Any:
        return state - batch["x"].mean(), {}

    def init(key: Any) -> Any:
        return jax.random.normal(key, (4,))

    verification = verified(made_otherwise(step, lambda key: 2 * init(key), AsWritten(step, init)))
    assert [check.step for check in verification.wrong] == [0]
    assert verification.wrong[0].ratio == pytest.approx(2)


def test_what_a_loss_means_is_read_from_it_and_not_from_the_step() -> None:
    """Every option has its place in the reference; a new one is added there too."""
    assert {one.name for one in dataclasses.fields(LossAsWritten)} == {
        *("loss", "optimizer", "accumulate", "model_state", "groups", "reduction", "metrics", "per_example_gradients")
    }
