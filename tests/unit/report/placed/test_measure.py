"""Parts measured alone on one device."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.analysis.parts.measure_parts import measure_exchange, measure_parts
from outlay.core.error_types import ExplainError
from outlay.graph.graph_loop import GraphLoop
from outlay.graph.step_graph import Part, Source, StepGraph


def talk(ear):
    """A graph in which one part counts, one listens, and one multiplies matrices."""

    def count(state, read):
        return {"count": state["count"] + 1}, {"out": state["count"]}

    def listen(state, read):
        jax.debug.callback(ear, read["in"][0], read["x"][0])
        return state, {}

    def work(state, read):
        return {"w": state["w"] @ state["w"] / 300}, {}

    parts = {
        "counter": Part(count),
        "listener": Part(listen, {"in": (Source("counter", "out"),), "x": (Source("inputs", "x"),)}),
        "worker": Part(work),
    }

    def init(key):
        state = {"counter": {"count": jnp.zeros(())}, "listener": {}, "worker": {"w": jnp.ones((300, 300))}}
        return state | {"cache": {"counter": {"out": jnp.zeros(())}, "listener": {}, "worker": {}}}

    return GraphLoop(StepGraph(parts)), init


@pytest.fixture(scope="module")
def measured():
    heard = []
    graph_loop, init = talk(lambda *values: heard.append(tuple(map(float, values))))
    times = measure_parts(graph_loop, init, {"x": np.arange(10.0, 16.0)}, num_rounds=3)
    jax.effects_barrier()
    return times, heard


def test_the_largest_part_bounds_what_placing_can_gain(measured):
    times, _ = measured
    assert times.largest == max(times.seconds, key=times.seconds.__getitem__)
    assert times.num_steps == 6
    assert times.sum == pytest.approx(sum(times.seconds.values()))
    assert times.best_gain == pytest.approx(times.sum / times.seconds[times.largest])
    assert all(seconds > 0 for seconds in times.seconds.values())


def test_each_reads_what_it_reads_in_a_real_run(measured):
    _, heard = measured
    # Alone it hears in every round what was put out in the first run of all, beside the inputs of the same steps.
    alone = [(float(step), 10.0 + step) for step in range(6)]
    assert all(heard.count(pair) >= 4 for pair in alone)


def test_in_words_and_as_data(measured):
    times, _ = measured
    text = str(times)
    assert f"{times.largest} takes" in text
    assert "one device (sum / max)" in text
    assert "measured on cpu, medians of 6 steps" in text
    assert times.bound in " ".join(times.to_html().split())
    data = json.loads(json.dumps(times.to_dict()))
    assert data["best_gain"] == times.best_gain
    assert list(data["seconds"]) == ["counter", "listener", "worker"]


@needs_gpu_compiler
def test_only_on_attached_devices():
    graph_loop, init = talk(print)
    (device, *_) = outlay.mesh(target="h100:1x1", all=1).devices.flat
    with pytest.raises(ExplainError, match="not attached to this process"):
        measure_parts(graph_loop, init, {"x": np.arange(2.0)}, device=device)


@pytest.mark.compiles
def test_exchange():
    exchange = measure_exchange(jax.devices()[:3])
    assert list(exchange.per_gather) == [2, 3]
    assert 0 < exchange.per_gather[2] <= exchange.per_gather[3]
    assert exchange.per_group + exchange.per_transfer > 0
    assert exchange.per_group >= 0
    assert exchange.per_transfer >= 0
