"""What stands beside NNX objects in one state may have flags and functions of its own, as under `nnx.jit`."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import train_state

import outlay

pytestmark = pytest.mark.newest

X = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
LAYOUT = outlay.fsdp(min_size=8) + outlay.data_parallel()


class Net(nnx.Module):
    """A layer that is used twice, around dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layer, self.drop = nnx.Linear(8, 8, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
        self.head = self.layer

    def __call__(self, x: Any) -> Any:
        return self.head(self.drop(self.layer(x)))


@flax.struct.dataclass
class Statistics:
    """A count, a flag of evaluation, and settings that are none."""

    count: jax.Array
    train: bool = flax.struct.field(pytree_node=False, default=True)
    scale: float = flax.struct.field(pytree_node=False, default=2.0)


def init(key: Any) -> Any:
    return {"model": Net(nnx.Rngs(key)), "extra": (Statistics(jnp.zeros((), jnp.int32)),)}


def step(state: Any, x: Any) -> Any:
    (statistics,) = state["extra"]
    y = state["model"](x) * (statistics.scale if statistics.train else 1)
    count = statistics.count + (1 if statistics.train else 100)
    return {**state, "extra": (statistics.replace(count=count),)}, y.sum()


def with_flags(state: Any, *, train: bool) -> Any:
    state["model"].set_attributes(deterministic=not train)
    return {**state, "extra": (state["extra"][0].replace(train=train),)}


def test_flags_of_a_struct_beside_a_module_change_between_calls() -> None:
    program = outlay.program(step, init, X, layout=LAYOUT, mesh=outlay.mesh(data=8))
    state, expected, jitted = program.init(jax.random.key(0)), init(jax.random.key(0)), nnx.jit(step)
    for train in (True, False, False, True):
        state, total = program(with_flags(state, train=train), X)
        expected, right = jitted(with_flags(expected, train=train), X)
        np.testing.assert_allclose(total, right, rtol=2e-5)
        assert state["extra"][0].train is train
    assert int(state["extra"][0].count) == 202
    assert state["model"].head is state["model"].layer


def test_a_setting_that_is_no_flag_is_named_with_both_values() -> None:
    program = outlay.program(step, init, X, layout=LAYOUT, mesh=outlay.mesh(data=8))
    state = program.init(jax.random.key(0))
    other = {**state, "extra": (state["extra"][0].replace(scale=3.0),)}
    with pytest.raises(outlay.errors.ProgramError, match=r"extra\.0\.scale: planned 2\.0, given 3\.0"):
        program(other, X)


@pytest.mark.thorough  # as the flags above
@pytest.mark.any_jax
def test_functions_that_init_makes_anew_stand_beside_a_module_that_is_evaluated() -> None:
    def with_training(key: Any) -> Any:
        made = train_state.TrainState.create(
            apply_fn=lambda params, x: x @ params["w"], params={"w": jnp.ones((8, 8)) / 8}, tx=optax.sgd(0.1)
        )
        return {"model": Net(nnx.Rngs(key)), "train": made}

    def train(state: Any, x: Any) -> Any:
        now = state["train"]
        grads = jax.grad(lambda params: (now.apply_fn(params, x) ** 2).mean())(now.params)
        return {**state, "train": now.apply_gradients(grads=grads)}, state["model"](x).sum()

    program = outlay.program(train, with_training, X, layout=LAYOUT, mesh=outlay.mesh(data=8))
    state, expected, jitted = program.init(jax.random.key(0)), with_training(jax.random.key(0)), nnx.jit(train)
    for evaluates in (False, True, True):
        state["model"].set_attributes(deterministic=evaluates)
        expected["model"].set_attributes(deterministic=evaluates)
        (state, total), (expected, right) = program(state, X), jitted(expected, X)
        np.testing.assert_allclose(total, right, rtol=2e-5)
    assert int(state["train"].step) == 3
