"""Flags of evaluation that change between calls run as under the library's own jit, whoever keeps them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen
from flax.training import train_state

import outlay

pytestmark = pytest.mark.newest

WIDTH = 8
X = np.random.default_rng(0).normal(size=(16, WIDTH)).astype(np.float32)
LAYOUT = outlay.fsdp(min_size=8) + outlay.data_parallel()
SGD = optax.sgd(0.1)


def update(state: dict[str, Any], loss: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A step of SGD on the model of a state."""
    value, grads = eqx.filter_value_and_grad(loss)(state["model"])
    return {**state, "model": eqx.apply_updates(state["model"], jax.tree.map(lambda x: -0.1 * x, grads))}, value


class Net(eqx.Module):
    """Dropout with its flag, which is no static field, a setting that is one, and a function among the leaves."""

    linear: eqx.nn.Linear
    drop: eqx.nn.Dropout
    activation: Callable[[Any], Any] = jnp.tanh
    doubles: bool = eqx.field(static=True, default=False)

    def __call__(self, x: Any) -> Any:
        x = self.activation(self.linear(x)) * (2 if self.doubles else 1)
        return self.drop(x, key=jax.random.key(1))


def init_equinox(key: Any) -> Any:
    return {"model": Net(eqx.nn.Linear(WIDTH, WIDTH, key=key), eqx.nn.Dropout(0.5))}


def step_equinox(state: Any, x: Any) -> Any:
    return update(state, lambda model: jnp.mean((jax.vmap(model)(x) - 1) ** 2))


def inference(state: Any, flag: bool) -> Any:
    return {"model": eqx.nn.inference_mode(state["model"], flag)}


def inference_of_a_whole_model(state: Any, flag: bool) -> Any:
    return inference({"model": outlay.train.as_model(state["model"])}, flag)


def static_field(state: Any, flag: bool) -> Any:
    return {"model": dataclasses.replace(state["model"], doubles=flag)}


class Linen(linen.Module):
    """A module of Flax whose flag is a field, as of `nn.Dropout` and `nn.BatchNorm`."""

    train: bool = True
    rate: float = 0.5

    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.BatchNorm(use_running_average=not self.train)(linen.Dense(WIDTH, use_bias=False)(x))
        return linen.Dropout(self.rate, deterministic=not self.train)(x)


class Trained(train_state.TrainState):
    """Flax's, with the averages of BatchNorm."""

    batch_stats: Any = None


def init_linen(key: Any, apply: Callable[[], Any] = lambda: Linen().apply) -> Any:
    made = Linen(train=False).init(key, X)
    return Trained.create(apply_fn=apply(), params=made["params"], tx=SGD, batch_stats=made["batch_stats"])


def step_linen(state: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        values = {"params": params, "batch_stats": state.batch_stats}
        y, new = state.apply_fn(values, x, mutable=["batch_stats"], rngs={"dropout": jax.random.key(3)})
        return jnp.mean((y - 1) ** 2), new["batch_stats"]

    (value, batch_stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=batch_stats), value


def anew(state: Any, flag: bool) -> Any:
    """The `apply` of a module that is made for each call, as most training loops do."""
    return state.replace(apply_fn=Linen(train=not flag).apply)


def apply_with(values: Any, x: Any, train: bool, **options: Any) -> Any:
    return Linen(train=train).apply(values, x, **options)


def closure_of(train: bool) -> Any:
    return lambda values, x, **options: Linen(train=train).apply(values, x, **options)


def partial_of(train: bool) -> Any:
    return functools.partial(apply_with, train=train)


@flax.struct.dataclass
class Struct:
    """A dataclass of Flax with a flag of its own."""

    model: Any
    is_evaluated: bool = flax.struct.field(pytree_node=False, default=False)


def step_struct(state: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.mean((x @ w * (2 if state.is_evaluated else 1) - 1) ** 2)

    value, grad = jax.value_and_grad(loss)(state.model)
    return state.replace(model=state.model - 0.1 * grad), value


FLAGS: dict[str, tuple[Any, ...]] = {
    "equinox inference_mode": (init_equinox, step_equinox, inference),
    "equinox inference_mode of a whole model": (init_equinox, step_equinox, inference_of_a_whole_model),
    "equinox static field": (init_equinox, step_equinox, static_field),
    "linen apply of a module made anew": (init_linen, step_linen, anew),
    "linen in a partial": (
        lambda key: init_linen(key, lambda: partial_of(True)),
        step_linen,
        lambda state, flag: state.replace(apply_fn=partial_of(not flag)),
    ),
    "linen in a closure": (
        lambda key: init_linen(key, lambda: closure_of(True)),
        step_linen,
        lambda state, flag: state.replace(apply_fn=closure_of(not flag)),
    ),
    "struct": (
        lambda key: Struct(jax.random.normal(key, (WIDTH, WIDTH))),
        step_struct,
        lambda state, flag: state.replace(is_evaluated=flag),
    ),
}
ON_NEWEST_JAX = {"equinox inference_mode", "linen apply of a module made anew"}
EACH = [pytest.param(name, marks=[] if name in ON_NEWEST_JAX else pytest.mark.any_jax) for name in FLAGS]


@pytest.mark.some_cases(1, newest=1)
@pytest.mark.parametrize("name", EACH)
def test_a_flag_that_changes_between_calls_runs_as_under_the_librarys_own_jit(name: str) -> None:
    init, step, change = FLAGS[name]
    with jax.numpy_rank_promotion("allow"):
        jitted, expected = eqx.filter_jit(step), init(jax.random.key(0))
        program = outlay.program(step, init, X, layout=LAYOUT, mesh=outlay.mesh(data=8))
        state = program.init(jax.random.key(0))
        for flag in (False, True, False, True, True):
            state, expected = change(state, flag), change(expected, flag)
            (state, loss), (expected, right) = program(state, X), jitted(expected, X)
            np.testing.assert_allclose(loss, right, rtol=2e-5)
    assert len(program._of_flags) == 1  # as often as it is set: one program more


def refused(state: Any, init: Any, step: Any) -> str:
    with jax.numpy_rank_promotion("allow"):
        program = outlay.program(step, init, X, layout=LAYOUT, mesh=outlay.mesh(data=8))
        with pytest.raises(outlay.errors.ProgramError) as caught:
            program(state(program.init(jax.random.key(0))), X)
    message = str(caught.value)
    assert len(message.splitlines()) <= 5
    return message


class Other(Linen):
    """Another module with the same fields and parameters."""


@pytest.mark.any_jax
def test_any_other_difference_is_named_by_attribute() -> None:
    def drop(p: float) -> Any:
        return lambda state: {"model": eqx.tree_at(lambda model: model.drop.p, state["model"], p)}

    assert "\n  model.drop.p: planned 0.5, given 0.2\n" in refused(drop(0.2), init_equinox, step_equinox)
    linen_cases = [
        (
            Linen(rate=0.25, train=False).apply,
            "apply_fn.train: planned True, given False\n  apply_fn.rate: planned 0.5",
        ),
        (Other().apply, "apply_fn: planned Linen.apply, given Other.apply"),
        (lambda values, x, **options: None, "apply_fn: planned Linen.apply, given "),
    ]
    for apply, words in linen_cases:
        assert words in refused(lambda state, apply=apply: state.replace(apply_fn=apply), init_linen, step_linen)
    other_optimizer = refused(lambda state: state.replace(tx=optax.sgd(0.2)), init_linen, step_linen)
    assert "tx.update" in other_optimizer


class Plain:
    """A model that keeps its settings in attributes."""

    def __init__(self, scale: float, table: Any) -> None:
        self.scale, self.table = scale, table

    def apply(self, values: Any, x: Any, **_: Any) -> Any:
        return x @ values["params"]["Dense_0"]["kernel"] * self.scale + self.table, {"batch_stats": {}}


@pytest.mark.any_jax
def test_objects_with_other_arrays_are_never_taken_for_the_planned_ones() -> None:
    """They are compiled into the step, which would compute with the old ones."""
    table = jnp.zeros(WIDTH)

    def of(scale: float, table: Any) -> Any:
        def init(key: Any) -> Any:
            params = {"Dense_0": {"kernel": jax.random.normal(key, (WIDTH, WIDTH))}}
            apply_fn = Plain(scale, table).apply
            return Trained.create(apply_fn=apply_fn, params=params, tx=SGD, batch_stats={})

        return init

    def given(scale: float, table: Any) -> Any:
        return lambda state: state.replace(apply_fn=Plain(scale, table).apply)

    assert "apply_fn.scale: planned 1.0, given 3.0" in refused(given(3.0, table), of(1.0, table), step_linen)
    assert "apply_fn.table: planned " in refused(given(1.0, table + 1), of(1.0, table), step_linen)
