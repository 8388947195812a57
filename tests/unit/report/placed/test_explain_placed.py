"""A placed program is explained part by part; what is sent is counted to the byte."""

import html
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.unit.program.waves import NUM_STEPS, graph, init_of, inputs

import outlay
from outlay.core.error_types import ExplainError
from outlay.core.terminal_text import to_text
from outlay.core.traced_flops import count_flops
from outlay.graph.graph_loop import GraphLoop
from outlay.graph.step_graph import Part, Source, StepGraph
from outlay.layout.strategies import by_rows
from outlay.report.explain.budgets import broken_budgets

APART = {"source": 0, "a": 1, "b": 2, "sum": 3}


def explained(places=APART, *, near=1, far=1, num_devices=4, target=None):
    waves = graph(near=near, far=far)
    mesh = outlay.mesh(devices=jax.devices()[:num_devices], all=num_devices)
    program = outlay.program(
        GraphLoop(waves), init_of(waves), inputs(), layout=outlay.by_module(places), mesh=mesh, mode="placed"
    )
    return outlay.explain(program, target=target)


@pytest.fixture(scope="module")
def apart():
    return explained()


@pytest.fixture(scope="module")
def split():
    return explained({"source": 0, "a": 0, "b": [1, 2, 3], "sum": 0})


def sent(explanation):
    return {(f"{one.part}:{one.port}", one.origin, one.target): one.num_bytes for one in explanation.by_parts.sent}


def test_sent_bytes_by_device_and_output(apart):
    assert sent(apart) == {
        ("source:tops", (0,), (1,)): 5,
        ("a:tops", (1,), (2,)): 7,
        ("a:height", (1,), (2,)): 28,
        ("b:tops", (2,), (1,)): 10,
        ("b:height", (2,), (3,)): 40,
    }
    assert apart.by_parts.bytes_per_step == 90
    assert [one.readers for one in apart.by_parts.sent if one.part == "source"] == [("a",)]


def test_nothing_is_sent_within_a_place():
    together = explained({"source": 0, "a": 0, "b": 1, "sum": 1}, num_devices=2)
    assert set(sent(together)) == {("a:tops", (0,), (1,)), ("a:height", (0,), (1,)), ("b:tops", (1,), (0,))}


def test_each_output_with_those_that_read_it():
    explanation = explained({"source": 0, "a": 0, "b": 1, "sum": 0}, num_devices=2)
    readers = {f"{one.part}:{one.port}": one.readers for one in explanation.by_parts.sent}
    assert readers == {"a:tops": ("b",), "a:height": ("b",), "b:tops": ("a",), "b:height": ("sum",)}


def test_several_steps_share_an_exchange():
    explanation = explained(near=2, far=3)
    assert explanation.by_parts.num_steps_at_once == 2
    # Two steps of it are kept, and sent once for two steps.
    assert sent(explanation)["source:tops", (0,), (1,)] == 5
    assert sent(explanation)["b:height", (2,), (3,)] == 3 * 40 / 2


@pytest.mark.compiles
def test_each_part_with_its_device_and_its_state(apart):
    assert {part.name: part.devices for part in apart.by_parts.parts} == {
        "source": (0,),
        "a": (1,),
        "b": (2,),
        "sum": (3,),
    }
    assert apart.by_parts["a"].num_bytes == 4 * (7 * 15 + 7 + 15) + 7
    assert apart.by_parts["sum"].num_bytes == 4
    waves, state = graph(), jax.eval_shape(init_of(graph()), jax.random.key(0))
    read = jax.eval_shape(lambda cache: waves.read("b", cache, {"x": jnp.zeros(5)}), state["cache"])
    assert apart.by_parts["b"].flops == count_flops(jax.make_jaxpr(waves.parts["b"].step)(state["b"], read))


def test_shares_and_bounds(apart):
    costs = {part.name: part.cost for part in apart.by_parts.parts}
    assert sum(part.share for part in apart.by_parts.parts) == pytest.approx(1)
    assert apart.by_parts.best_gain == pytest.approx(sum(costs.values()) / max(costs.values()))
    assert apart.by_parts.gain == pytest.approx(apart.by_parts.best_gain)
    together = explained({"source": 0, "a": 0, "b": 0, "sum": 0}, num_devices=1)
    assert together.by_parts.gain == pytest.approx(1)
    assert together.by_parts.best_gain == pytest.approx(apart.by_parts.best_gain, rel=0.01)
    assert together.by_parts.sent == ()


def test_the_cache_by_path(apart):
    cached = {one.path: (one.owners, one.sent_to, one.num_bytes) for one in apart.by_parts.cached}
    assert cached["cache.b.height"] == ((2,), (3,), 40)
    assert cached["cache.b.tops"] == ((2,), (1,), 10)
    assert cached["cache.sum.total"] == ((3,), (), 4)
    assert len(cached) == 6


def test_a_part_on_several_devices(split, apart):
    assert split.by_parts["b"].devices == (1, 2, 3)
    # 10 rows are filled up to 12: 4 on each of three devices.
    assert split.by_parts["b"].num_bytes == 4 * (4 * 24 + 4 + 24) + 4
    assert split.by_parts["b"].flops == pytest.approx(0.4 * apart.by_parts["b"].flops, rel=0.1)
    (rows,) = [one for one in split.by_parts.sent if one.is_within]
    assert rows.part == "b"
    assert rows.target == (1, 2, 3)
    # Of each of 4 rows a top in 2 bits and a height in 32, in whole words: 5 words to each of two others.
    assert rows.num_bytes == pytest.approx(2 * 4 * 5, rel=0.2)
    assert sent(split)["a:tops", (0,), (1, 2, 3)] == 7
    assert split.by_parts.bytes_per_step == pytest.approx(3 * 35 + 50 + 3 * rows.num_bytes)


def test_nothing_is_run():
    heard = []

    def step(state, read):
        jax.debug.callback(lambda: heard.append(1))
        return state, {"out": read["in"][0] + 1}

    loud = StepGraph({"one": Part(step, {"in": (Source("one", "out"),)})})

    def init(key):
        return {"one": {}, "cache": {"one": {"out": jnp.zeros(())}}}

    layout, mesh = outlay.by_module({"one": 0}), outlay.mesh(devices=jax.devices()[:1], all=1)
    steps = {"step": np.arange(3)}
    program = outlay.program(GraphLoop(loud), init, steps, layout=layout, mesh=mesh, mode="placed")
    outlay.explain(program)
    assert heard == []
    jax.block_until_ready(program(program.init(jax.random.key(0)), steps))
    jax.effects_barrier()
    assert len(heard) == 3


def uneven(num_devices, places):
    """One part that is nearly all of the work, and two small ones."""

    def large(state, read):
        return {"w": state["w"] @ state["w"] / 300 + read["in"][0]}, {"out": read["in"][0] + 1}

    def small(state, read):
        return state, {"out": read["in"][0] * 0.5}

    parts = {
        "large": Part(large, {"in": (Source("left", "out"),)}),
        "left": Part(small, {"in": (Source("right", "out"),)}),
        "right": Part(small, {"in": (Source("large", "out"),)}),
    }

    def init(key):
        state = {"large": {"w": jnp.ones((300, 300))}, "left": {}, "right": {}}
        return state | {"cache": {name: {"out": jnp.zeros(())} for name in parts}}

    mesh = outlay.mesh(devices=jax.devices()[:num_devices], all=num_devices)
    steps = {"step": np.arange(4)}
    layout = outlay.by_module(places)
    return outlay.explain(
        outlay.program(GraphLoop(StepGraph(parts)), init, steps, layout=layout, mesh=mesh, mode="placed")
    )


def test_findings():
    explanation = uneven(4, {"large": 0, "left": 1, "right": 2})
    (dominant,) = explanation.of_kind("dominant-part")
    assert dominant.text.startswith(
        "large takes 100% of the work, so no placement part by part can be faster than 1.0x"
    )
    assert '"large": [0, 1]' in dominant.fix
    (idle,) = explanation.of_kind("idle-device")
    assert idle.text == "device 3: nothing to do"
    assert not explanation.of_kind("exchange-above-work")
    assert not explanation.of_kind("unbalanced")


def test_an_exchange_that_costs_more_than_the_work(apart):
    (exchange,) = apart.of_kind("exchange-above-work")
    assert "90 B in 5 transfers" in exchange.text
    assert not apart.of_kind("idle-device")


def test_parts_that_share_the_busiest_device():
    explanation = explained({"source": 0, "a": 0, "b": 0, "sum": 1}, num_devices=2)
    (unbalanced,) = explanation.of_kind("unbalanced")
    assert "device 0 does" in unbalanced.text
    assert "source, a, b" in unbalanced.text


@pytest.mark.parametrize("width", [90, 120, 160])
def test_the_text_of_a_placed_explanation(apart, split, width):
    for explanation in (apart, split):
        text = to_text(explanation, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert "cache.b.height" in text
        assert "(sum / max)" in text
        assert "nothing was run" in text
        assert "estimate" in text
    assert "one another" in str(split)


def test_the_page_holds_all_of_it(apart):
    words = html.unescape(re.sub(r"<wbr>", "", apart.to_html()))
    for one in (*apart.by_parts.cached, *apart.findings):
        assert (one.path if hasattr(one, "path") else one.fix) in words
    for one in apart.by_parts.sent:
        assert f"<code>{one.part}:{one.port}</code>" in words
    assert "simulated devices" in words
    assert not re.search(r"https?://(?!www\.w3\.org)", words)  # nothing to load


def test_as_data(apart):
    data = json.loads(json.dumps(apart.to_dict()))
    assert data["best_gain"] == apart.by_parts.best_gain
    assert [part["name"] for part in data["parts"]] == ["source", "a", "b", "sum"]
    assert sum(one["bytes_in_all"] for one in data["sent"]) == data["bytes_per_step"] == 90


def test_limits(apart, split):
    assert broken_budgets(apart, max_bytes=50, max_memory=apart.by_parts.peak) == ()
    assert broken_budgets(apart, max_bytes=49) == ("a device sends 50 B a step, limit 49 B",)
    (memory,) = broken_budgets(apart, max_memory=apart.by_parts.peak - 1)
    assert "a device needs" in memory
    assert broken_budgets(apart, forbid=["all-gather"]) == ()
    assert broken_budgets(split, forbid=["all-gather"]) == ("all-gather is forbidden, but exchanges the rows of b",)


def test_another_target():
    explanation = explained(target="h100:1x4")
    assert str(explanation.target) == "h100:1x4"
    # So small a part takes longer there: a kernel of a GPU costs more to start than a call on a CPU.
    assert explanation.by_parts["b"].cost > explained().by_parts["b"].cost
    with pytest.raises(ExplainError, match=r"the program is for 4 devices, but h100:1x8 has 8"):
        explained(target="h100:1x8")


def test_there_is_no_estimate_of_the_whole(apart):
    with pytest.raises(ExplainError, match="has no single estimate"):
        outlay.estimate(apart)


@pytest.mark.compiles
def test_figures_of_a_graph_loop_come_to_one_step_of_its_graph():
    waves = graph()
    mesh = outlay.mesh(devices=jax.devices()[:2], neurons=2)
    program = outlay.program(
        GraphLoop(waves), init_of(waves), inputs(), layout=by_rows("neurons"), mesh=mesh, mode="manual"
    )
    explanation = outlay.explain(program)
    (gather,) = [one for one in explanation.collectives if one.kind == "all-gather" and one.count == NUM_STEPS]
    assert gather.source is not None
    assert gather.source.file.endswith("subgraph.py")
    each = "a step of this program is 11 steps of its graph; figures are for all 11, and in one a device sends "
    assert f"{each}{gather.bytes_moved} B in 1 collective" in explanation.notes
