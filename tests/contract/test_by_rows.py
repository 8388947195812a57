"""A graph loop split by rows computes what one device computes, bit for bit, on any number of devices."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.program.waves import NUM_STEPS, assert_same, graph, graph_loop, init_of, inputs, on_one_device

import outlay
from outlay.core.error_types import LayoutError, ProgramError
from outlay.graph.graph_loop import GraphLoop
from outlay.graph.step_graph import Part, Source, StepGraph
from outlay.layout.strategies import by_rows

pytestmark = pytest.mark.newest


@functools.cache
def alone(near, far):
    return jax.device_get(on_one_device(graph_loop(near=near, far=far)))


@functools.cache
def program_on(num, near=1, far=1):
    """Compiled once for all tests."""
    return new_program_on(num, near, far)


def new_program_on(num, near=1, far=1, layout=None, mode="manual"):
    step = graph_loop(near=near, far=far)
    mesh = outlay.mesh(devices=jax.devices()[:num], n=num)
    return outlay.program(step, init_of(step.graph), inputs(), layout=layout or by_rows("n"), mesh=mesh, mode=mode)


@pytest.mark.some_cases(1, newest=0)
@pytest.mark.parametrize(
    ("num", "near", "far"),
    [
        *(pytest.param(*each, marks=pytest.mark.any_jax) for each in ((1, 1, 1), (3, 1, 1))),
        (6, 2, 3),
    ],
)
def test_rows_compute_what_one_device_computes(num, near, far):
    program = program_on(num, near, far)
    state, outputs = program(program.init(jax.random.key(0)), inputs())
    expected_state, expected = alone(near, far)
    assert_same(program.crop(state), expected_state)
    assert_same(outputs, expected)
    assert outputs["recorded"]["a.height"].shape == (NUM_STEPS // 5, 7)


@pytest.mark.any_jax
def test_rows_are_exchanged_in_one_collective_a_block():
    def num_exchanges(**latencies):
        program = program_on(2, **latencies)
        return str(jax.make_jaxpr(program._execution.step)(program.state_shapes, program.batch_shapes)).count(
            "all_gather["
        )

    assert num_exchanges() == 1  # in the loop over steps
    assert num_exchanges(near=2, far=3) == 2  # in the loop over blocks of two, and after the last step
    assert num_exchanges(near=11, far=11) == 1


@pytest.mark.any_jax
def test_the_plan_says_which_rows_are_where_and_what_filling_up_costs():
    plan = program_on(6).plan
    kernel = plan["b.kernel"]
    assert (kernel.shape, kernel.local_shape, kernel.spec) == ((12, 24), (2, 24), P("n", None))
    assert "2 rows a device; 10 rows padded to 12, +192 B in all" in kernel.reason
    assert plan["cache.b.tops"].spec == plan["b.seen"].spec == plan["batch.x"].spec == P()
    assert "filled" not in program_on(2).plan["b.kernel"].reason


@pytest.mark.any_jax
def test_rows_that_fill_up_do_nothing():
    program = program_on(6)
    state = program.init(jax.random.key(0))
    assert state["a"]["kernel"].shape == (12, 15)
    wild = jax.tree.map(np.array, jax.device_get(state))
    wild["a"]["kernel"][7:], wild["a"]["height"][7:] = 1e6, -1e6
    state, outputs = program(outlay.arrays.put(wild, program.plan, program.mesh), inputs())
    expected_state, expected = alone(1, 1)
    assert_same((program.crop(state), outputs), (expected_state, expected))


@pytest.mark.thorough  # test_placed.py has the same proof
@pytest.mark.any_jax
def test_the_proof_allows_no_rounding():
    verification = outlay.verify(program_on(3), steps=1)
    assert verification.ok
    assert {check.allowed for check in verification.checks} == {0.0}


@pytest.mark.thorough  # test_verify_parts.py finds one in rows
@pytest.mark.any_jax
def test_a_difference_is_found(monkeypatch):
    program = program_on(3)
    pad = program.pad

    def wrong(state):
        return pad({**state, "sum": {"total": state["sum"]["total"] + np.float32(1e-7)}})

    monkeypatch.setattr(program, "pad", wrong)
    assert not outlay.verify(program, steps=1).ok


@pytest.mark.any_jax
def test_half_fitting_layouts_are_refused():
    with pytest.raises(ProgramError, match="by_rows lays out a graph loop in mode manual"):
        new_program_on(2, mode="auto")
    with pytest.raises(ProgramError, match="is split by the rows of its parts"):
        new_program_on(2, layout=[("**", P()), ("batch.**", P())])
    with pytest.raises(LayoutError, match="axis 'rows' is not in"):
        new_program_on(2, layout=by_rows())
    with pytest.raises(LayoutError, match="only a graph knows"):
        by_rows("n").plan({"w": np.ones((4, 2))}, outlay.mesh(n=8))
    with pytest.raises(ProgramError, match='against="one-device"'):
        outlay.verify(program_on(2), against="auto")


@pytest.mark.any_jax
def test_leaves_by_rows_have_the_same_number_of_rows():
    import dataclasses

    whole = graph()
    wrong = dataclasses.replace(whole.parts["a"], by_rows=("kernel", "seen"))
    step = GraphLoop(type(whole)({**whole.parts, "a": wrong}, whole.outputs))
    mesh = outlay.mesh(devices=jax.devices()[:2], n=2)
    with pytest.raises(ProgramError, match=r"by_rows of a have different numbers of rows: \[7, 15\]"):
        outlay.program(step, init_of(whole), inputs(), layout=by_rows("n"), mesh=mesh, mode="manual")


def counting(encodings):
    """A part of two outputs of its own: an int8 that counts from 40, and the signs of it."""

    def count(state, read):
        x = state["x"] + jax.numpy.int8(1)
        total = sum(one.astype("int32").sum() for one in read["in"])
        return {"x": x, "sum": state["sum"] + total[None]}, {"count": x, "sign": jax.numpy.sign(x)}

    reads = {"in": (Source("c", "count"), Source("c", "sign"))}
    graph = StepGraph({"c": Part(count, reads, by_rows=("x",), encodings=encodings)}, {"seen": ("c", "count")})

    def init(key):
        start = jax.numpy.arange(40, 44, dtype="int8") * jax.numpy.array([1, -1, 1, -1], "int8")
        state = {"c": {"x": start, "sum": jax.numpy.zeros(1, "int32")}}
        return {**state, "cache": {"c": dict.fromkeys(("count", "sign"), jax.numpy.zeros(4, "int8"))}}

    return graph, init


@pytest.mark.any_jax
@pytest.mark.parametrize("encodings", [{}, {"sign": "ternary"}])
def test_an_output_of_one_octet_keeps_all_its_bits_unless_its_part_says_that_it_has_two(encodings):
    (graph, init), mesh = counting(encodings), outlay.mesh(devices=jax.devices()[:2], n=2)
    steps = {"step": np.arange(4)}
    program = outlay.program(GraphLoop(graph), init, steps, layout=by_rows("n"), mesh=mesh, mode="manual")
    got = program(program.init(jax.random.key(0)), steps)
    assert_same(got, jax.jit(GraphLoop(graph))(init(None), steps))
    assert got[0]["c"]["sum"].tolist() == [2 + 6 + 10]
