import shlex
from pathlib import Path

from outlay.devices.target import Target
from outlay.recipes.find import find_recipe
from outlay.recipes.prepare import prepare
from outlay.recipes.ways_to_fit import Changes
from outlay.search.candidate import Candidate

DEEP = f"{Path(__file__).with_name('varied.py')}:deep"
PEAK = 2**30


def ways(share):
    """What would fit into a share of what a program needs."""
    words = ("--batch", "16")
    prepared = prepare(find_recipe(DEEP, words), layout="fsdp")
    capacity = int(share * PEAK)
    own, plan = Candidate("fsdp", "data=8"), prepared.program.plan
    target = Target.parse("cpu:8")
    ways = Changes(own, plan, "auto", DEEP, words, target, peak=PEAK, capacity=capacity).that_fit()
    assert all(way.num_bytes <= capacity for way in ways)
    return ways


def test_each_way_makes_the_least_change_of_one_kind_and_is_a_command():
    ways_found = ways(0.9)
    changes = [way.candidate.options for way in ways_found]
    assert changes == [(("batch", 8),), (("remat", "products"),), (("accumulate", 2),)]
    for way in ways_found:
        words = shlex.split(way.command)
        assert words[:3] == ["outlay", "explain", DEEP]
        assert words.count("--batch") == 1
        assert words[words.index("--target") :] == ["--target", "cpu:8", "--layout", "fsdp", "--mesh", "data=8"]
        find_recipe(DEEP, words[3 : words.index("--target")])


def test_what_no_change_alone_brings_they_bring_together():
    (way,) = ways(0.4)
    assert way.candidate.options == (("remat", "full"), ("accumulate", 2))
