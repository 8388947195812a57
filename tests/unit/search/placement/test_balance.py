"""Balanced placements, against all placements there are."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.search.placement.costs import ring

from outlay.search.placement.costs import Costs, Read, expect_placed
from outlay.search.placement.placement_search import balance

TIMES = st.lists(st.integers(0, 20), min_size=1, max_size=6)


def best(costs: Costs, num_devices: int) -> float:
    names = list(costs.seconds)
    return min(
        expect_placed(costs, dict(zip(names, places, strict=True))).seconds
        for places in itertools.product(range(num_devices), repeat=len(names))
        if len(set(places)) == num_devices
    )


@pytest.mark.compiles
@given(times=TIMES, data=st.data())
def test_it_is_near_the_best_and_uses_all_devices(times, data):
    num = data.draw(st.integers(1, len(times)))
    costs = ring(seconds={str(i): float(time) for i, time in enumerate(times)}, reads=())
    placement = balance(costs, num)
    assert list(placement) == list(costs.seconds)
    assert set(placement.values()) == set(range(num))
    assert expect_placed(costs, placement).seconds <= 4 / 3 * best(costs, num)


def test_longest_first_alone_would_do_worse():
    costs = ring(seconds={"a": 3.0, "b": 3.0, "c": 2.0, "d": 2.0, "e": 2.0}, reads=())
    assert expect_placed(costs, balance(costs, 2)).seconds == 6


def test_parts_that_talk_much_stay_together():
    seconds = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
    talk = (Read("a", "out", "d", 10), Read("d", "out", "a", 10), Read("b", "out", "c", 1), Read("c", "out", "b", 1))
    placement = balance(ring(seconds=seconds, reads=talk, bandwidth=10.0), 2)
    assert placement["a"] == placement["d"] != placement["b"] == placement["c"]


@pytest.mark.parametrize("num", [1, 2, 3])
def test_devices_are_numbered_as_the_parts_come(num):
    seen = list(dict.fromkeys(balance(ring(), num).values()))
    assert seen == list(range(num))
