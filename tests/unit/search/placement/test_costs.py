"""What a step is expected to take, against sums done by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.unit.search.placement.costs import ring

from outlay.devices.target import Target
from outlay.graph.graph_loop import GraphLoop
from outlay.graph.step_graph import Part, Source, StepGraph
from outlay.search.placement.costs import Read, estimated_costs, expect_by_rows, expect_copies, expect_placed

APART = {"a": 0, "b": 1, "c": 2}


def test_the_busiest_place_sets_the_pace():
    assert expect_placed(ring(), APART).work == 3
    assert expect_placed(ring(), {"a": 0, "b": 1, "c": 0}).work == 4


def test_exchange_is_counted_by_place_and_by_transfer():
    costs = expect_placed(ring(per_group=0.1, per_transfer=0.01, bandwidth=1000.0), APART)
    # a to b, a to c, b to c, c to a
    assert costs.num_bytes == 211
    assert costs.exchange == pytest.approx(3 * 0.1 + 4 * 0.01 + 0.211)


def test_what_two_parts_of_a_place_read_is_sent_once():
    costs = expect_placed(ring(per_transfer=1.0), {"a": 0, "b": 1, "c": 1})
    assert costs.num_bytes == 101
    assert costs.exchange == 2


def test_one_place_exchanges_nothing():
    costs = expect_placed(ring(per_group=1.0, per_transfer=1.0), dict.fromkeys("abc", 4))
    assert (costs.work, costs.exchange, costs.num_bytes) == (6, 0, 0)


def test_later_reading_makes_exchanges_rarer():
    later = ring(reads=(Read("a", "out", "b", 8, 4), Read("b", "out", "a", 8, 6)), per_group=1.0)
    assert expect_placed(later, {"a": 0, "b": 1, "c": 1}).exchange == pytest.approx(2 / 4)


def test_shared_cores_do_the_work_of_all():
    assert expect_placed(ring(num_cores=1), APART).work == 6
    assert expect_placed(ring(num_cores=2), {"a": 0, "b": 1, "c": 1}).work == 3
    assert expect_copies(ring(num_cores=2), 6).work == 18
    assert expect_copies(ring(), 6).work == 6


def test_by_rows_the_fullest_device_counts():
    # Of 5 rows 3 on one of two devices, of 4 two; c is computed by both.
    costs = expect_by_rows(ring(), 2)
    assert costs.work == pytest.approx(3 * 3 / 5 + 2 / 2 + 1)
    assert costs.exchange == 0.25
    assert costs.num_bytes == 110
    assert expect_by_rows(ring(num_cores=1), 2).work == pytest.approx(2 * 3.8)


def test_bound():
    assert ring().largest == "a"
    assert ring().best_gain == 2
    assert ring(seconds={"a": 0.0}).best_gain == 1


def test_rows_are_priced_as_their_part_encodes_them():
    """An int8 output takes an octet an entry; only one that its part declares ternary takes two bits."""

    def step(state, read):
        return state, {"count": state["x"], "sign": state["x"]}

    reads = {"in": (Source("a", "count", latency=3), Source("a", "sign"))}
    part = Part(step, reads, by_rows=("x",), encodings={"sign": "ternary"})
    graph = StepGraph({"a": part})

    def init(key):
        rows = jnp.zeros(64, "int8")
        return {"a": {"x": rows}, "cache": {"a": {"count": jnp.zeros((3, 64), "int8"), "sign": rows}}}

    costs = estimated_costs(GraphLoop(graph), init, {"step": np.arange(4)}, Target.parse("cpu:8"))
    assert {read.port: read.num_bytes_by_rows for read in costs.reads} == {"count": 64, "sign": 16}
    assert expect_by_rows(costs, 2).num_bytes == 80
