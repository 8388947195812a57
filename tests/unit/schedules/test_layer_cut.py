"""Cutting layers into unequal stages, against every cut that there is; and what schedules take with unequal times."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay import schedules
from outlay.schedules.layer_cut import balanced_cut, stage_times

PRICE = st.integers(0, 40)


@given(st.integers(1, 9), st.integers(2, 4), st.integers(1, 2), PRICE, st.integers(1, 12), PRICE)
def test_no_other_cut_has_a_faster_slowest_stage(
    more: int, stages: int, repeats: int, before: int, layer: int, after: int
) -> None:
    places, prices = stages * repeats, (float(before), float(layer), float(after))
    layers = places - 1 + more
    cut = balanced_cut(layers, stages, repeats, prices)
    assert (sum(cut), len(cut)) == (layers, places)
    assert min(cut) >= 1
    # All cuts: where the bars stand between layers.
    bars = itertools.combinations(range(1, layers), places - 1)
    cuts = [[b - a for a, b in itertools.pairwise((0, *each, layers))] for each in bars]
    slowest = [max(stage_times(each, stages, prices)) for each in cuts]
    assert max(stage_times(cut, stages, prices)) == min(slowest)
    # Equal places need no exchange, so they are taken where they are as good.
    equal = [layers // places] * places
    assert list(cut) == equal or equal not in cuts or slowest[cuts.index(equal)] > min(slowest)


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.gpipe(3, 4),
        schedules.one_f_one_b(4, 8),
        schedules.interleaved(2, 4, 2),
        schedules.zero_bubble(3, 6),
    ],
    ids=lambda schedule: schedule.name,
)
def test_stages_of_equal_times_take_the_ticks_of_the_schedule(schedule: schedules.StageSchedule) -> None:
    places = schedule.num_stages * schedule.num_repeats
    timed = schedules.TimedSchedule(schedule, [1.0] * places, [2.0] * places)
    assert timed.span == schedule.num_ticks
    assert timed.bubble == pytest.approx(schedule.bubble)


def test_unequal_stages_wait_for_the_slowest() -> None:
    """M microbatches pass the slow stage one after the other; the fast one works before and after."""
    timed = schedules.TimedSchedule(schedules.one_f_one_b(2, 4), forward=(1.0, 3.0), backward=(2.0, 6.0))
    assert timed.span == 1 + 4 * (3 + 6) + 2
    assert timed.bubble == pytest.approx(1 - 4 * (3 + 9) / (2 * timed.span))
    rows = str(timed).splitlines()
    assert [row.split()[0:2] for row in rows] == [["stage", "0"], ["stage", "1"]]
    assert len(rows[0]) == len(rows[1]) == 100
    # Each microbatch takes three times as much of the second row as of the first.
    shares = [1 - row.count(".") / len(row) for row in rows]
    assert shares[1] / shares[0] == pytest.approx(3, rel=0.25)
