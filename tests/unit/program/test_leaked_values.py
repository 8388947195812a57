"""A value of init that is kept outside of the state is named where it is kept, and not accepted."""

from __future__ import annotations

import functools
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx  # noqa: F401  # steps are wrapped in another way where somebody has imported it

import outlay

X = np.ones((8, 4), np.float32)
stored: list[Any] = []


def refused(step: Any, init: Any, mode: Any = "auto") -> str:
    with pytest.raises(outlay.errors.ProgramError) as error:
        outlay.program(step, init, X, layout=outlay.data_parallel(), mesh="data=8", mode=mode)
    return str(error.value)


def init(key: jax.Array) -> Any:
    stored[:] = [{"scale": jax.random.normal(key, (4,))}]
    return {"w": jnp.ones(4)}


STEPS = {
    "as it is": ("auto", lambda s, x: (s, {"y": (x * stored[0]["scale"][None]).sum()})),
    "in a jitted function": ("auto", lambda s, x: (s, {"y": jax.jit(lambda w: w * stored[0]["scale"])(s["w"])})),
    "in a loop": (
        "auto",
        lambda s, x: (s, {"y": jax.lax.scan(lambda c, _: (c + stored[0]["scale"], None), s["w"], jnp.arange(3))[0]}),
    ),
    "on shards": ("manual", lambda s, x: (s, {"y": jax.lax.pmean((x * stored[0]["scale"][None]).sum(), "data")})),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_value_of_init_in_a_list_is_named_with_the_line_that_made_it(name: str) -> None:
    mode, step = STEPS[name]
    message = refused(step, init, mode)
    assert "uses 1 value that another function kept while JAX traced it" in message
    assert "leaked value: stored[0]['scale']\n    float32[4], made at" in message
    assert f"{__file__}:{init.__code__.co_firstlineno + 1}" in message
    assert "fix: return it as part of the state" in message


def test_a_loss_of_a_train_step_is_searched_too() -> None:
    optimizer = optax.sgd(0.1)

    def loss(params, batch, keys):
        return (batch * params["w"][None] * stored[0]["scale"][None]).sum(-1), {}

    message = refused(outlay.train_step(loss, optimizer), outlay.init_state(init, optimizer))
    assert "leaked value: stored[0]['scale']" in message


def test_the_static_part_of_a_model_that_init_stores_is_named_leaf_by_leaf() -> None:
    static = None

    def store(key: jax.Array) -> Any:
        nonlocal static
        model = eqx.nn.MLP(4, 4, 8, 1, key=key)
        params, static = eqx.partition(model, lambda leaf: eqx.is_array(leaf) and leaf.ndim > 1)
        return params

    message = refused(lambda params, x: (params, {"y": jax.vmap(eqx.combine(params, static))(x)}), store)
    assert "uses 2 values" in message
    for path in ("static.layers[0].bias", "static.layers[1].bias"):
        assert f"leaked value: {path}\n" in message


class Model:
    """Keeps a value in an attribute."""

    def init(self, key: jax.Array) -> Any:
        self.key = key
        return {"w": jnp.ones(4)}

    def step(self, state: Any, x: Any) -> Any:
        return state, {"y": jax.random.normal(self.key, (4,))}


@pytest.mark.parametrize("knows_nnx", [True, False])
def test_an_attribute_of_the_object_whose_method_the_step_is_is_named(
    knows_nnx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not knows_nnx:  # as where nobody has imported it; a step is then wrapped once less
        monkeypatch.delitem(sys.modules, "flax.nnx")
    model = Model()
    assert "leaked value: step.__self__.key\n" in refused(model.step, model.init)


def test_what_a_partial_step_keeps_is_named_from_the_step() -> None:
    def scaled(table: Any, by: Any, state: Any, x: Any) -> Any:
        return state, {"y": (x * table[0]["scale"][None]).sum() * by}

    message = refused(functools.partial(scaled, stored, 2.0), init)
    assert "leaked value: step.args[0][0]['scale']\n" in message


def test_arrays_that_a_step_keeps_are_no_such_values() -> None:
    table = jnp.arange(4.0)

    def step(state, x):
        return state, {"y": (x * table[None]).sum()}

    program = outlay.program(step, init, X, layout=outlay.data_parallel(), mesh="data=8")
    assert float(program(program.init(jax.random.key(0)), X)[1]["y"]) == 48
