"""Equinox modules go into a state as they are: arrays laid out, all else part of the structure."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.core.array_leaves import Static, arrays_only
from outlay.train.checkpoint.checkpoints import Checkpoints

pytestmark = pytest.mark.newest

OPTIMIZER = optax.adam(1e-2)
RNG = np.random.default_rng(0)
BATCH = {name: RNG.normal(size=(32, 8)).astype(np.float32) for name in ("x", "y")}
LAYOUT = outlay.fsdp(min_size=16) + outlay.data_parallel()


class Net(eqx.Module):
    """Functions, one of them made anew with each model, a rate, a flag in a dropout, and a name."""

    linear: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    activation: object
    scale: float
    name: str

    def __init__(self, key: jax.Array) -> None:
        self.linear = eqx.nn.Linear(8, 8, key=key)
        self.dropout = eqx.nn.Dropout(0.5)
        self.activation = lambda x: jnp.tanh(x)
        self.scale = 2.0
        self.name = "net"

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        if self.scale > 1 and self.name:  # neither may be traced
            x = self.dropout(x, key=key, inference=key is None)
        return self.scale * self.activation(self.linear(x))


def loss(model, batch, keys):
    out = jax.vmap(model)(batch["x"]) if keys is None else jax.vmap(model)(batch["x"], keys)
    return ((out - batch["y"]) ** 2).mean(1), {}


def made(mode: str = "auto") -> outlay.Program:
    step = outlay.train_step(loss, OPTIMIZER, accumulate=2)
    init = outlay.init_state(Net, OPTIMIZER)
    return outlay.program(step, init, BATCH, layout=LAYOUT, mesh=outlay.mesh(data=8), mode=mode)


@functools.cache
def trained(mode: str) -> tuple[outlay.Program, outlay.State, float]:
    """The program, the state after three steps, and the loss of the last one."""
    program = made(mode)
    state = program.init(jax.random.key(0))
    for _ in range(3):
        state, metrics = program(state, BATCH)
    return program, state, float(metrics["loss"])


@pytest.mark.any_jax
def test_a_module_trains_as_it_is(tmp_path):
    program, state, _ = trained("auto")
    assert program.plan["params.linear.weight"].is_split
    assert program.plan["opt_state.0.mu.linear.weight"].dims == program.plan["params.linear.weight"].dims
    assert outlay.verify(program, steps=1).ok
    assert outlay.evaluate(program, state, BATCH, loss=loss)["loss"] == pytest.approx(
        float(loss(outlay.train.as_model(jax.device_get(state.params)), BATCH, None)[0].mean()), rel=1e-4
    )
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, state)
    _, restored = Checkpoints(tmp_path).restore(program, 3)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    program(restored, BATCH)


@pytest.mark.thorough  # test_sharing_in_each_library.py has both modes
@pytest.mark.any_jax
def test_in_mode_manual_it_trains_alike():
    (_, auto, loss_in_auto), (_, manual, loss_in_manual) = trained("auto"), trained("manual")
    assert loss_in_manual == pytest.approx(loss_in_auto, rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), manual.params, auto.params)


@pytest.mark.thorough  # test_sharing_in_each_library.py
@pytest.mark.any_jax  # what a step is given does not depend on who wrote it
def test_a_step_of_ones_own_is_given_whole_modules():
    def init(key):
        model = eqx.nn.MLP(8, 8, 16, depth=1, key=key)
        return {"params": model, "opt_state": OPTIMIZER.init(eqx.filter(model, eqx.is_array))}

    def step(state, batch):
        def of(model):
            return ((jax.vmap(model)(batch["x"]) - batch["y"]) ** 2).mean()

        value, grads = eqx.filter_value_and_grad(of)(state["params"])
        updates, opt_state = OPTIMIZER.update(grads, state["opt_state"])
        return {"params": eqx.apply_updates(state["params"], updates), "opt_state": opt_state}, {"loss": value}

    program = outlay.program(step, init, BATCH, layout=LAYOUT, mesh=outlay.mesh(data=8))
    state, outputs = program(program.init(jax.random.key(0)), BATCH)
    expected, expected_outputs = eqx.filter_jit(step)(init(jax.random.key(0)), BATCH)
    np.testing.assert_allclose(outputs["loss"], expected_outputs["loss"], rtol=1e-5)
    got = outlay.train.as_model(state["params"])
    np.testing.assert_allclose(got.layers[0].weight, expected["params"].layers[0].weight, atol=1e-5)
    assert got(jnp.ones(8)).shape == (8,)
    assert outlay.verify(program, steps=1).ok


def test_a_step_that_changes_a_setting_is_refused():
    def step(model, batch):
        return eqx.tree_at(lambda m: m.name, model, "other"), {}

    with pytest.raises(
        outlay.errors.ProgramError, match=r"another container:\n(?s:.)*Static\(net\)(?s:.)*Static\(other"
    ):
        outlay.program(step, Net, BATCH, layout=LAYOUT, mesh=outlay.mesh(data=8))


def test_a_module_is_planned_and_put_as_it_is():
    mesh, model = outlay.mesh(data=8), Net(jax.random.key(0))
    plan = LAYOUT.plan(model, mesh, batch=BATCH)
    assert [leaf.path for leaf in plan.of_kind("state")] == ["linear.weight", "linear.bias"]
    placed = outlay.arrays.put(model, outlay.fsdp(min_size=16).plan(model, mesh), mesh)
    assert placed.linear.weight.sharding.shard_shape((8, 8)) == (1, 8)
    again = outlay.train.as_model(placed)
    assert (again.scale, again.name, again.dropout.p) == (2.0, "net", 0.5)
    np.testing.assert_allclose(again(jnp.ones(8)), model(jnp.ones(8)), rtol=1e-6)


def test_functions_are_the_same_where_their_source_and_what_they_hold_is():
    def scaled(by):
        return lambda x: by * x

    assert Static(scaled(2)) == Static(scaled(2))
    assert hash(Static(scaled(2))) == hash(Static(scaled(2)))
    assert Static(scaled(2)) != Static(scaled(3))
    assert Static(1) != Static(True)
    assert Static([1]) == Static([1])
    assert isinstance(hash(Static([1])), int)


def test_other_trees_stay_as_they_are():
    tree = {"w": 1.0, "name": "adam", "f": jnp.tanh}
    assert arrays_only(tree) == tree


def test_a_function_of_modules_is_explained_under_filter_jit():
    mesh, model = outlay.mesh(data=8), Net(jax.random.key(0))
    placed = outlay.train.as_model(outlay.arrays.put(model, outlay.fsdp(min_size=16).plan(model, mesh), mesh))
    x = jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=jax.NamedSharding(mesh, jax.P("data")))
    explanation = outlay.explain(eqx.filter_jit(lambda model, x: jax.vmap(model)(x)), placed, x)
    assert [one.kind for one in explanation.collectives] == ["all-gather"]
    assert explanation.work.flops == pytest.approx(explanation.work.flops_compiled, rel=0.2)
    with pytest.raises(outlay.errors.ExplainError, match=r"model\.activation: a function(?s:.)*eqx\.filter_jit\(f\)"):
        outlay.explain(jax.jit(lambda model, x: jax.vmap(model)(x)), placed, x)
