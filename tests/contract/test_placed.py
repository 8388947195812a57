"""The parts of a graph in programs of their own compute what one device computes, bit for bit."""

import functools

import jax
import numpy as np
import pytest
from tests.contract.placed_as_planned import assert_placed_as_planned, blocks
from tests.unit.program.waves import assert_same, graph, graph_loop, init_of, inputs, on_one_device

import outlay
from outlay.core.error_types import LayoutError, ProgramError
from outlay.program.device_group import routes

pytestmark = pytest.mark.newest

PLACES = {
    "each alone": {"source": 0, "a": 1, "b": 2, "sum": 3},
    "two together": {"source": 0, "a": 1, "b": 0, "sum": 1},
    "all together": {"source": 5, "a": 5, "b": 5, "sum": 5},
    "some on several": {"source": 0, "a": [1, 2], "b": [3, 4, 5], "sum": 1},
    "together on several": {"source": 0, "a": [1, 2], "b": [2, 1], "sum": 0},
}
LATENCIES = [(1, 1), (2, 3), (3, 4)]


@functools.cache
def alone(near, far):
    return jax.device_get(on_one_device(graph_loop(near=near, far=far)))


@functools.cache
def program_at(name, near=1, far=1):
    """Compiled once for all tests."""
    return new_program_at(PLACES[name], near, far)


def new_program_at(places, near=1, far=1, mode="placed"):
    step = graph_loop(near=near, far=far)
    mesh = outlay.mesh(devices=jax.devices()[:6], all=6)
    layout = outlay.by_module(places)
    return outlay.program(step, init_of(step.graph), inputs(), layout=layout, mesh=mesh, mode=mode)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    ("places", "near", "far"),
    [
        pytest.param("each alone", 1, 1, marks=pytest.mark.any_jax),
        pytest.param("two together", 2, 3, marks=pytest.mark.any_jax),
        pytest.param("all together", 2, 3, marks=pytest.mark.any_jax),
        ("some on several", 3, 4),
        pytest.param("together on several", 2, 3, marks=pytest.mark.any_jax),
    ],
)
def test_placed_parts_compute_what_one_device_computes(places, near, far):
    """Some on several at latencies of 1: test_a_state_on_the_host_is_taken_to_where_it_belongs."""
    program = program_at(places, near, far)
    state, outputs = program(program.init(jax.random.key(0)), inputs())
    expected_state, expected = alone(near, far)
    assert_same(program.crop(state), expected_state)
    assert_same(outputs, expected)
    assert_placed_as_planned(state, program.plan)


@pytest.mark.any_jax
def test_a_graph_loop_goes_on_where_the_last_one_ended():
    program = program_at("each alone")
    state, _ = program(program.init(jax.random.key(0)), inputs())
    assert_same(program(state, inputs()), on_one_device(graph_loop(), num_calls=2))


@pytest.mark.any_jax
def test_a_dispatch_runs_as_many_steps_as_what_crosses_is_old():
    assert [program_at("each alone", *each).num_steps_at_once for each in LATENCIES] == [1, 2, 3]
    assert program_at("all together").num_steps_at_once == 11
    assert new_program_at({"source": 0, "a": 0, "b": 0, "sum": 1}, near=1, far=4).num_steps_at_once == 4


def test_state_is_born_on_its_device_and_nothing_of_it_elsewhere():
    program = program_at("each alone")
    state = program.init(jax.random.key(0))
    assert blocks(state["a"]["kernel"]) == [[1]]
    assert blocks(state["b"]["kernel"]) == blocks(state["cache"]["b"]["tops"]) == [[2]]
    for number, make in enumerate(program._execution._makers):
        num_kernels = make.lower(jax.random.key(0)).compile().as_text().count("erf_inv") > 0
        assert num_kernels == (number in (1, 2)), "a place draws the kernel of another"


@pytest.mark.any_jax
def test_outputs_are_sent_only_to_where_they_are_read():
    sent = {(route.part, route.port, route.device.id) for route in routes(program_at("each alone").device_groups)}
    assert sent == {
        ("source", "tops", 1),
        ("b", "tops", 1),
        ("a", "tops", 2),
        ("a", "height", 2),
        ("b", "height", 3),
    }
    assert routes(program_at("all together").device_groups) == []


@pytest.mark.any_jax
def test_the_plan_shows_parts_caches_and_inputs_where_they_are():
    plan = program_at("some on several").plan
    assert plan["cache.source.tops"].device_ids == plan["batch.x"].device_ids == (0,)
    assert plan["batch.x"].reason == "read by source"
    kernel = plan["b.kernel"]
    assert (kernel.device_ids, kernel.shape, kernel.local_shape, kernel.num_copies) == ((3, 4, 5), (12, 24), (4, 24), 1)
    assert "4 rows on each; 10 filled up to 12, +192 B in all" in kernel.reason
    assert plan["b.seen"].num_copies == 3


@pytest.mark.any_jax
def test_show_says_where_parts_and_caches_are():
    program = program_at("some on several")
    shown = str(outlay.show(program))
    for line in ("devices 3-5, by rows", "cache.a.height", "3 leaves split in 3"):
        assert line in shown
    state = str(outlay.show(program.init(jax.random.key(0)), "cache"))
    assert "device 0" in state
    assert "cache.b.tops" in state


@pytest.mark.any_jax
def test_the_proof_allows_no_rounding():
    verification = outlay.verify(program_at("some on several"), steps=1)
    assert verification.ok
    assert {check.allowed for check in verification.checks} == {0.0}


@pytest.mark.any_jax
def test_there_is_one_compiled_step_for_each_place():
    assert len(program_at("each alone").compiled_parts) == 4
    assert [place.names for place in program_at("two together").device_groups] == [("source", "b"), ("a", "sum")]
    with pytest.raises(ProgramError, match=r"2 compiled steps.*\n  fix: program.lowered_parts"):
        program_at("two together").lowered  # noqa: B018 - a property that refuses
    together = program_at("all together")
    assert together.compiled is together.compiled_parts[0]


@pytest.mark.any_jax
def test_a_used_state_is_refused():
    program = program_at("each alone")
    state = program.init(jax.random.key(0))
    program(state, inputs())
    with pytest.raises(ProgramError, match=r"used already.*a\.height"):
        program(state, inputs())


@pytest.mark.any_jax
def test_a_state_on_the_host_is_taken_to_where_it_belongs():
    program = program_at("some on several")
    state = jax.device_get(program.init(jax.random.key(0)))
    state, outputs = program(state, inputs())
    assert_same((program.crop(state), outputs), alone(1, 1))


@pytest.mark.any_jax
def test_a_state_elsewhere_and_other_inputs_are_named():
    program = program_at("each alone")
    state = jax.device_put(program.init(jax.random.key(0)), jax.devices()[0])
    with pytest.raises(ProgramError, match=r"lives elsewhere: a\.kernel\n.*planned on device 1"):
        program(state, inputs())
    with pytest.raises(ProgramError, match=r"missing leaf: batch\.x"):
        program(program.init(jax.random.key(0)), {"y": inputs()["x"]})
    with pytest.raises(ProgramError, match=r"batch\.x"):
        program(program.init(jax.random.key(0)), inputs(4))


@pytest.mark.any_jax
def test_wrong_places_are_all_named():
    with pytest.raises(LayoutError) as refused:
        new_program_at({"source": 0, "aa": 1, "b": 7, "sum": [1, 2]})
    assert [(problem.kind, problem.where) for problem in refused.value.problems] == [
        ("no such part", "aa.**"),
        ("part without a device", "a"),
        ("no such device", "b"),
        ("not by rows", "sum"),
    ]
    assert "did you mean 'a'?" in str(refused.value)
    with pytest.raises(LayoutError, match="part split over device groups: a"):
        program_at_rules([("a.**", outlay.layout.on(1)), ("cache.a.**", outlay.layout.on(2)), *PLACED_REST])
    with pytest.raises(LayoutError, match=r"not a place: \*\*"):
        program_at_rules([("**", outlay.fsdp().rules[0].placement), ("a.**", outlay.layout.on(1)), *PLACED_REST])


PLACED_REST = [(f"{root}{name}.**", outlay.layout.on(0)) for name in ("source", "b", "sum") for root in ("", "cache.")]


def program_at_rules(rules):
    step, mesh = graph_loop(), outlay.mesh(devices=jax.devices()[:6], all=6)
    return outlay.program(step, init_of(step.graph), inputs(), layout=rules, mesh=mesh, mode="placed")


@pytest.mark.any_jax
def test_only_a_graph_loop_is_placed():
    waves, mesh = graph(), outlay.mesh(devices=jax.devices()[:6], all=6)
    layout = outlay.by_module(PLACES["each alone"])
    with pytest.raises(ProgramError, match=r"the step StepGraph is no graph, and the layout has no pipeline rule"):
        outlay.program(waves, init_of(waves), {"x": np.ones(5)}, layout=layout, mesh=mesh, mode="placed")
    with pytest.raises(ProgramError, match="parts of the graph on devices of their own, and mode auto"):
        new_program_at(PLACES["each alone"], mode="auto")
