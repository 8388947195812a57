import pytest
from brain_tests.unit.brain.run.tiny import Count, Ramp, tiny

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.files.read_brain import read_brain
from outlay.brain.run.brain_recipe import BrainRecipe
from outlay.brain.run.from_file import EXAMPLE
from outlay.brain.run.layouts import balanced
from outlay.recipes.prepare import prepare


def ramps(**units) -> Brain:
    """Modules of so many units, and one that counts the spikes of the first; only the last reads the input."""
    first, last = next(iter(units)), list(units)[-1]
    connections = [Connection("count:signal", f"{name}:signal") for name in units if name != last]
    return Brain(
        {**{name: Ramp(number) for name, number in units.items()}, "count": Count()},
        [*connections, Connection("inputs:light", f"{last}:signal"), Connection(f"{first}:out_spikes", "count:spikes")],
        inputs={"light": (2,)},
        outputs={"seen": "count:signal"},
    )


def test_with_a_device_for_each_module_the_border_comes_first():
    brain = ramps(a=5, b=9, c=2)
    assert balanced(brain, 4) == {"c": 0, "count": 1, "a": 2, "b": 3}
    assert balanced(brain, 8) == balanced(brain, 4)


def test_with_fewer_devices_the_largest_come_first_and_go_where_least_is():
    brain = ramps(a=5, b=9, c=6, d=3)
    assert {facts.name: facts.num_elements for facts in brain.inspect().modules} == {
        "a": 25,
        "b": 45,
        "c": 30,
        "d": 15,
        "count": 0,
    }
    assert balanced(brain, 2) == {"b": 0, "c": 1, "a": 1, "d": 0, "count": 1}
    assert balanced(brain, 1) == dict.fromkeys(brain.modules, 0)


def test_the_modules_of_ab_brain_on_six_devices():
    expected = {"spiker": 0, "integrator": 1, "A_ex": 2, "A_in": 3, "B_ex": 4, "B_in": 5}
    assert balanced(read_brain(EXAMPLE), 6) == expected


@pytest.mark.parametrize(("mode", "layout"), [("placed", "by-module"), ("manual", "by-neuron"), ("auto", "copies")])
def test_a_mode_alone_means_the_layout_that_goes_with_it_and_the_other_way_round(mode, layout):
    recipe = BrainRecipe.of(tiny())
    by_mode, by_layout = prepare(recipe, mode=mode), prepare(recipe, layout=layout)
    assert (by_mode.layout_name, by_layout.program.mode) == (layout, mode)


def test_the_placement_is_spelled_in_the_plan():
    plan = prepare(BrainRecipe.of(tiny()), layout="by-module").program.plan
    where = {leaf.path: leaf.device_ids for leaf in plan.of_kind("state")}
    assert where["eye.soma.potential"] == where["cache.eye.out_spikes"] == (0,)
    assert where["cache.count.signal"] == (1,)
