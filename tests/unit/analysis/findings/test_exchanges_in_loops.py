"""Exchanges that a loop repeats are found with what they cost, and those that it needs each time are not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # test_findings.py has findings there

KINDS = ("sum-in-loop", "same-in-each-turn")


@functools.cache
def mesh():
    return outlay.mesh(data=8)


def repeated(function, *args):
    """The findings about loops in a function that is compiled for eight devices."""
    findings = outlay.explain(jax.jit(function), *args, cache=False).findings
    return {one.kind: one for one in findings if one.kind in KINDS}


def array(shape, *spec):
    return jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(mesh(), P(*spec)))


PARAMS, BATCH = array((64, 64)), array((4, 32, 64), None, "data")


def loss(params, batch):
    return (jnp.tanh(batch @ params) ** 2).sum()


def test_gradients_that_a_users_own_loop_sums_in_each_turn():
    def step(params, batches):
        def add(grads, batch):
            return grads + jax.grad(loss)(params, batch), None

        return params - jax.lax.scan(add, jnp.zeros_like(params), batches)[0]

    one = repeated(step, PARAMS, BATCH)["sum-in-loop"]
    assert "all-reduce over data" in one.text
    assert "in each of 4 turns of a loop" in one.text
    assert "112.0 KiB a step, though it only adds them up: 28.0 KiB if summed once behind it" in one.text
    assert "accumulate=4" in one.fix


def test_sums_that_the_next_turn_needs_are_left_alone():
    def step(params, batches):
        def descend(params, batch):
            return params - 0.1 * jax.grad(loss)(params, batch), None

        return jax.lax.scan(descend, params, batches)[0]

    assert repeated(step, PARAMS, BATCH) == {}


def test_sums_that_are_clipped_before_they_are_added_are_left_alone():
    def step(params, batches):
        def add(grads, batch):
            new = jax.grad(loss)(params, batch)
            return grads + new / jnp.maximum(1.0, jnp.linalg.norm(new)), None

        return params - jax.lax.scan(add, jnp.zeros_like(params), batches)[0]

    assert "sum-in-loop" not in repeated(step, PARAMS, BATCH)


def deep(layers, batch):
    return (jax.lax.scan(lambda x, layer: (jnp.tanh(x @ layer), None), batch, layers)[0] ** 2).sum()


def test_layers_that_are_gathered_again_for_each_microbatch():
    def step(layers, batches):
        def add(total, batch):
            return total + deep(layers, batch), None

        return jax.lax.scan(add, 0.0, batches)[0]

    one = repeated(step, array((3, 64, 64), None, "data"), BATCH)["same-in-each-turn"]
    assert "all-gather over data" in one.text
    assert "again in each of 4 turns" in one.text
    assert "168.0 KiB a step, 42.0 KiB if done once before it" in one.text
    assert "48.0 KiB to hold" in one.fix


def test_layers_that_are_gathered_one_by_one_are_left_alone():
    assert repeated(deep, array((4, 64, 64), None, "data"), array((32, 64), "data")) == {}


def test_a_step_that_cannot_sum_once_says_why_and_fsdp_says_what_both_ways_cost():
    def each(params, batch, keys):
        x, _ = jax.lax.scan(lambda x, layer: (jnp.tanh(x @ layer), None), batch, params["w"])
        return (x**2).sum(1), {}

    optimizer = optax.sgd(0.1)
    program = outlay.program(
        outlay.train_step(each, optimizer, accumulate=4),
        outlay.init_state(lambda key: {"w": jnp.ones((3, 64, 64))}, optimizer),
        np.ones((128, 64), np.float32),
        layout=outlay.fsdp(min_size=2) + outlay.data_parallel(),
        mesh=mesh(),
    )
    findings = {one.kind: one for one in outlay.explain(program, cache=False).findings}
    assert "but parameters are split over data" in findings["sum-in-loop"].fix
    assert '("grads.**", outlay.replicate())' in findings["same-in-each-turn"].fix
    assert "48.0 KiB to hold" in findings["same-in-each-turn"].fix


def stages_over(data_rules, by_hand=False):
    """Findings about loops in a pipeline of two stages and two microbatches."""

    def init(key):
        return {"params": {"layers": jax.random.normal(key, (4, 64, 64))}}

    def run(params, batch):
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch, params["layers"])
        return (x**2).mean(-1)

    def descend(state, batch):
        grads = jax.grad(lambda params: run(params, batch).mean())(state["params"])
        return {"params": jax.tree.map(lambda x, grad: x - 0.1 * grad, state["params"], grads)}, {}

    optimizer = optax.sgd(0.1)
    trained = outlay.train_step(lambda params, batch, keys: (run(params, batch), {}), optimizer)
    layout = outlay.Layout([("params.layers", outlay.layout.pipeline("stage", microbatches=2))])
    program = outlay.program(
        descend if by_hand else trained,
        init if by_hand else outlay.init_state(lambda key: init(key)["params"], optimizer),
        np.ones((8, 64), np.float32),
        layout=layout + data_rules + outlay.data_parallel(),
        mesh=outlay.mesh(stage=2, data=4),
    )
    findings = [one for one in outlay.explain(program, cache=False).findings if one.kind in KINDS]
    assert all("in each of 3 turns of a loop" in one.text for one in findings)
    assert not any("accumulate=" in one.fix for one in findings)
    return {one.kind: one.fix for one in findings}


def test_a_pipeline_sums_gradients_once():
    assert stages_over(outlay.Layout([])) == {}


@pytest.mark.thorough  # other pipelines below
def test_a_pipeline_of_leaves_that_the_batch_s_axis_splits_is_told_the_rule_with_which_it_does():
    fixes = stages_over(outlay.fsdp("data", min_size=1))
    assert {*fixes} == {*KINDS}
    assert all('("grads.**", outlay.replicate())' in fix for fix in fixes.values())
    whole = outlay.Layout([("grads.**", outlay.replicate())])
    assert stages_over(outlay.fsdp("data", min_size=1) + whole) == {}


@pytest.mark.thorough  # as of other pipelines
def test_a_pipeline_of_a_step_by_hand_is_told_of_the_step_that_does():
    assert (
        "in a pipeline outlay.train_step(loss, optimizer) does"
        in stages_over(outlay.Layout([]), by_hand=True)["sum-in-loop"]
    )
