"""Which way to run a graph, and what is said of the others."""

import json

import jax
import numpy as np
import pytest
from tests.unit.devices.compilers import needs_gpu_compiler
from tests.unit.program.waves import graph, init_of, inputs
from tests.unit.search.placement.costs import ring

import outlay
from outlay.core.terminal_text import to_text
from outlay.devices.target import Target
from outlay.graph.graph_loop import GraphLoop
from outlay.search.placement.choice import PlacementChoice
from outlay.search.placement.placement_search import choose_placement, compare

WAVES = graph()


def names(ways):
    return [(way.layout, way.num_devices) for way in ways]


def test_all_ways_are_compared_the_fastest_first():
    ways = compare(ring(), 3)
    assert sorted(names(ways)) == sorted(
        [("one device", 1), ("by-module", 2), ("by-module", 3), ("by-rows", 2), ("by-rows", 3), ("copies", 3)]
    )
    assert [way.seconds for way in ways] == sorted(way.seconds for way in ways)


def test_modules_win_where_exchange_costs_nothing_and_ties_go_to_fewer_devices():
    first = compare(ring(rows={}), 3)[0]
    assert (first.layout, first.num_devices) == ("by-module", 2)
    assert first.placement == {"a": 0, "b": 1, "c": 1}


def test_one_device_wins_where_exchange_costs_more_than_it_saves():
    assert names(compare(ring(rows={}, per_transfer=2.0), 3))[0] == ("one device", 1)
    assert names(compare(ring(rows={}, num_cores=1, per_group=0.01), 3))[0] == ("one device", 1)


def test_rows_win_where_they_can_be_split():
    seconds = {"a": 8.0, "b": 1.0, "c": 0.0}
    assert names(compare(ring(seconds=seconds, rows={"a": 300, "b": 300}), 3))[0] == ("by-rows", 3)


def choice(costs, num_devices=3):
    ways = compare(costs, num_devices, "by-neuron")
    return PlacementChoice("net", ("--size", "2"), f"cpu:{num_devices}", costs, ways, None, "by-neuron", "", 0.0)


def test_the_answer_in_words():
    placement = choice(ring(rows={}, per_transfer=2.0, num_cores=2))
    assert placement.headline == "cpu:3: one device is best, about 6 s a step"
    assert placement.because.startswith(
        "by-module on 2 devices, which comes next, computes for 3 s and exchanges for 4 s"
    )
    assert any("share this machine's 2 cores" in note for note in placement.notes)
    assert any("nothing was measured" in note for note in placement.notes)
    text = to_text(placement, width=120)
    assert (
        "a takes 50% of the time, so no placement part by part can be faster than 2.0x one device (sum / max)" in text
    )
    assert placement.commands("net.toml") == ("outlay run net --size 2 --layout net.toml --mode placed --devices 1",)
    split = choice(ring(per_transfer=2.0))
    assert split.headline.startswith("cpu:3: by-neuron on 3 devices, about 3.7 s a step, 1.62x as fast")
    assert split.commands("f.toml")[0] == "outlay run net --size 2 --layout by-neuron --devices 3"
    json.dumps(placement.to_dict())


@pytest.fixture(scope="module")
def measured():
    return choose_placement(GraphLoop(WAVES), init_of(WAVES), inputs(), Target.parse("cpu:3"), recipe="waves")


@pytest.mark.thorough  # test_choose_brain.py runs what was chosen
def test_on_attached_devices_the_best_of_each_kind_is_run(measured):
    assert measured.costs.is_measured
    assert measured.costs.num_cores
    assert measured.together > 0
    run = [way.layout for way in measured.ways if way.measured is not None]
    assert sorted(run) == ["by-module", "by-rows", "one device"]
    assert run == [way.layout for way in measured.ways[:3]]
    assert measured.chosen.seconds == min(way.measured for way in measured.ways[:3])
    assert "measured" in str(measured)


@pytest.mark.thorough
@pytest.mark.compiles
def test_the_file_is_a_layout_that_runs(measured, tmp_path):
    file = tmp_path / "chosen.toml"
    file.write_text(measured.toml)
    assert measured.toml.startswith("# Chosen by outlay choose waves --target cpu:3\n")
    layout = outlay.layout.read_layout(file)
    mesh = outlay.mesh("devices=-1")
    program = outlay.program(GraphLoop(WAVES), init_of(WAVES), inputs(), layout=layout, mesh=mesh, mode="placed")
    placement = measured.placed.placement
    there = {part.name: part.devices for part in outlay.explain(program).by_parts.parts}
    assert there == {name: (place,) for name, place in placement.items()}
    state, _ = program(program.init(jax.random.key(0)), inputs())
    assert np.isfinite(jax.device_get(state["b"]["height"])).all()


@pytest.mark.compiles
@needs_gpu_compiler
def test_elsewhere_everything_is_estimated():
    placement = choose_placement(GraphLoop(WAVES), init_of(WAVES), inputs(), Target.parse("h100:1x4"), recipe="waves")
    assert not placement.costs.is_measured
    assert placement.costs.num_cores is None
    assert all(way.measured is None for way in placement.ways)
    assert placement.headline.startswith("h100:1x4: one device is best")
    assert placement.commands() == ("outlay run waves --layout THIS_FILE --mode placed",)
