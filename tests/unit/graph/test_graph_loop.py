"""Many steps in one loop are the same as one after the other, and tell what happened."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.unit.program.waves import NUM_STEPS, assert_same, graph, init_of, inputs

from outlay.core.error_types import ProgramError
from outlay.graph.graph_loop import GraphLoop
from outlay.graph.step_graph import LoopForm, Part, SharedStep, Source, StepGraph


@pytest.fixture(scope="module")
def waves():
    return graph(far=3)


@pytest.fixture(scope="module")
def start(waves):
    return jax.jit(init_of(waves))(jax.random.key(0))


@pytest.fixture(scope="module")
def one_by_one(waves, start):
    step, state, states, outputs = jax.jit(waves), start, [], []
    for x in inputs()["x"]:
        state, step_outputs = step(state, {"x": x})
        states.append(state)
        outputs.append(step_outputs)
    return states, outputs


def test_it_is_the_same_as_one_step_after_the_other(waves, start, one_by_one):
    states, outputs = one_by_one
    state, loop_outputs = jax.jit(GraphLoop(waves))(start, inputs())
    assert_same(state, states[-1])
    assert_same(loop_outputs["outputs"], jax.tree.map(lambda *steps: np.stack(steps), *outputs))
    assert np.abs(loop_outputs["outputs"]["height"]).sum() > 10


def test_the_step_of_a_part_is_traced_once(waves, start):
    traced = []

    def counting(state, read):
        traced.append(read)
        return waves.parts["sum"].step(state, read)

    parts = {**waves.parts, "sum": dataclasses.replace(waves.parts["sum"], step=counting)}
    jax.eval_shape(GraphLoop(StepGraph(parts, waves.outputs)), start, inputs())
    assert len(traced) == 1


def test_parts_that_share_a_call_compute_what_they_do_alone():
    """The state of one is nested, and each changes some of it before the call, in it and after it."""
    calls = []

    def step(state, read):
        state, (count, x) = (
            {**state, "own": {**state["own"], "count": state["own"]["count"] + 1}},
            before(state, read)[1],
        )
        changes, answer = together({"it": (state, x)})["it"]
        state = {**state, **changes}
        return {**state, "own": {**state["own"], "last": count * answer}}, {"out": count * answer}

    def before(state, read):
        return {"own": {"count": state["own"]["count"] + 1}}, (state["own"]["count"], read["in"][0])

    def together(requests):
        calls.append(list(requests))
        return {
            name: ({"large": state["large"] + x}, state["large"].sum() * x) for name, (state, x) in requests.items()
        }

    def after(state, given):
        count, answer = given
        return {"own": {"last": count * answer}}, {"out": count * answer}

    form = LoopForm(lambda state: state, SharedStep(before, together, after), lambda state: state)
    reads, start = {"in": (Source("inputs", "x"),)}, {"large": jnp.ones(3), "own": {"count": 1.0, "last": 0.0}}
    state = {"a": start, "b": jax.tree.map(lambda x: 2 * x, start), "cache": {name: {"out": 0.0} for name in "ab"}}
    state, x = jax.tree.map(jnp.asarray, state), {"x": jnp.arange(5.0)}
    alone = GraphLoop(StepGraph({name: Part(step, reads) for name in "ab"}, {"seen": ("b", "out")}))(state, x)
    calls.clear()
    graph = StepGraph({name: Part(step, reads, loop_form=lambda _: form) for name in "ab"}, {"seen": ("b", "out")})
    assert_same(GraphLoop(graph)(state, x), alone)
    assert calls == [["a", "b"]]


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("stride", [1, 4, 11, 12])
def test_what_is_recorded_is_every_so_many_steps_and_changes_nothing(waves, start, one_by_one, stride):
    states, _ = one_by_one
    graph_loop = GraphLoop(waves, record=("a.height", "b.kernel", "b:tops"), stride=stride)
    state, outputs = jax.jit(graph_loop)(start, inputs())
    assert_same(state, states[-1])
    expected = states[stride - 1 :: stride]
    assert len(outputs["recorded"]["a.height"]) == NUM_STEPS // stride == len(expected)
    for i, then in enumerate(expected):
        np.testing.assert_array_equal(outputs["recorded"]["a.height"][i], then["a"]["height"])
        np.testing.assert_array_equal(outputs["recorded"]["b.kernel"][i], then["b"]["kernel"])
        np.testing.assert_array_equal(outputs["recorded"]["b:tops"][i], then["cache"]["b"]["tops"][0])


@pytest.mark.compiles
def test_a_number_that_is_none_is_found_in_its_step(waves, start):
    x = inputs()
    x["x"][4] = np.nan  # of which the source makes no spike
    assert not any(np.asarray(first) >= 0 for first in GraphLoop(waves)(start, x)[1]["not_finite"].values())
    broken = {**start, "sum": {"total": jnp.asarray(np.inf)}}
    outputs = jax.jit(GraphLoop(waves))(broken, inputs())[1]["not_finite"]
    assert {name: int(first) for name, first in outputs.items()} == {"source": -1, "a": -1, "b": -1, "sum": 0}
    cache = start["cache"]["b"]
    later = {"height": cache["height"].at[0, 2].set(-np.inf), "tops": cache["tops"]}  # is read two steps later
    late = {**start, "cache": {**start["cache"], "b": later}}
    assert int(jax.jit(GraphLoop(waves))(late, inputs())[1]["not_finite"]["sum"]) == 2


def test_a_kernel_is_looked_at_in_the_end(waves, start):
    def stiff(state, read):
        return state, {"out": jnp.zeros(2)}

    part = next(iter(graph().parts.values()))
    quiet = type(waves)({"stiff": type(part)(stiff)})
    state = {"stiff": {"kernel": jnp.full((2, 2), jnp.nan)}, "cache": {"stiff": {"out": jnp.zeros(2)}}}
    outputs = GraphLoop(quiet)(state, {"step": np.arange(NUM_STEPS)})[1]["not_finite"]
    assert int(outputs["stiff"]) == NUM_STEPS - 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_all_that_is_not_finite_is_found_in_every_float(dtype, value):
    from outlay.graph.subgraph import first_seen

    largest = jnp.finfo(dtype).max
    fine, bad = jnp.array([0.0, largest, -largest], dtype), jnp.array([0.0, value, 1.0], dtype)
    values = [
        (fine, {}),
        (fine, {"out": bad}),
        (bad, {}),
        ({"as_long": fine, "first": bad}, {}),
        ({}, {"out": jnp.int32(1)}),
    ]
    assert first_seen(jnp.array([-1, -1, 1, -1, -1]), values, 3).tolist() == [-1, 3, 1, 3, -1]


def test_addresses_that_name_nothing_are_all_listed(waves, start):
    with pytest.raises(ProgramError, match=r"2 addresses.*\n.*a\.hight(.|\n)*did you mean 'a\.height'(.|\n)*c:tops"):
        GraphLoop(waves, record=("a.hight", "c:tops", "a:tops"))(start, inputs())


def test_inputs_say_how_many_steps(waves, start):
    with pytest.raises(ProgramError, match="x has 11, y has 3"):
        GraphLoop(waves)(start, {**inputs(), "y": np.zeros(3)})
    with pytest.raises(ProgramError, match="there are none"):
        GraphLoop(waves)(start, {})
    with pytest.raises(ProgramError, match="x has no dim"):
        GraphLoop(waves)(start, {"x": np.zeros(())})


def test_a_stride_is_at_least_one(waves):
    with pytest.raises(ProgramError, match="stride=0"):
        GraphLoop(waves, stride=0)


def test_a_graph_without_parts_runs():
    state, outputs = GraphLoop(StepGraph({}))({"cache": {}}, {"step": np.arange(3)})
    assert (state, outputs["not_finite"]) == ({"cache": {}}, {})
