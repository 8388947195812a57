"""Own schedules: what is wrong with one is said, all at once; a right one is counted and drawn."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from outlay.errors import LayoutError
from outlay.schedules import Action, StageSchedule, gpipe, in_order, interleaved, one_f_one_b, zero_bubble

RIGHT = [
    Action(0, 0, 0, "forward"),
    Action(1, 0, 1, "forward"),
    Action(1, 1, 0, "forward"),
    Action(2, 1, 0, "backward"),
    Action(4, 1, 1, "forward"),
    Action(5, 1, 1, "inputs"),
    Action(6, 1, 1, "weights"),
    Action(4, 0, 0, "backward"),
    Action(6, 0, 1, "backward"),
]


def made(actions: list[Action], **of: Any) -> StageSchedule:
    return StageSchedule(actions, num_stages=2, num_microbatches=2, **of)


def moved(number: int, **to: Any) -> list[Action]:
    return [dataclasses.replace(each, **to) if place == number else each for place, each in enumerate(RIGHT)]


def test_a_right_one_is_counted_and_drawn() -> None:
    schedule = made(RIGHT, name="own")
    assert (schedule.num_ticks, schedule.peak_held) == (8, (2, 1))
    assert schedule.bubble == pytest.approx(4 / 16)
    assert str(schedule).splitlines() == [
        "own: 2 stages, 2 microbatches: 8 ticks, 25.0 % of them idle",
        "held at once, by stage: 2, 1",
        "tick    0  1  2  3  4  5  6  7",
        "stage 0 F0 F1 .  .  B0 B0 B1 B1",
        "stage 1 .  F0 B0 B0 F1 I1 W1 .",
    ]
    assert json.loads(json.dumps(schedule.to_dict()))["actions"][0] == [0, 0, 0, 0, "forward"]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (
            moved(2, tick=0),
            r"forward of microbatch 0 on stage 1 at tick 0(?s:.*)ends before tick 1(?s:.*)tick 1 or later",
        ),
        (
            moved(7, tick=3),
            r"backward of microbatch 0 on stage 0 at tick 3(?s:.*)needs the backward of microbatch 0 on",
        ),
        (moved(6, tick=5), r"two at a time: backward for weights of microbatch 1(?s:.*)has tick 5 to 5"),
        (moved(4, tick=3), r"two at a time: forward of microbatch 1 on stage 1 at tick 3(?s:.*)has tick 2 to 3"),
        (RIGHT[:-1], r"missing: backward of microbatch 1 on stage 0"),
        (RIGHT[:6] + RIGHT[7:], r"missing: backward for weights of microbatch 1 on stage 1"),
        ([*RIGHT, Action(9, 0, 1, "forward")], r"twice: forward of microbatch 1 on stage 0(?s:.*)at ticks 1 and 9"),
        ([*RIGHT, Action(9, 0, 1, "inputs")], r"the whole backward pass is there, and a half of it too"),
        (moved(0, stage=2), r"no such stage(?s:.*)stage=2, and there are 2(?s:.*)from 0 to 1"),
        (moved(0, tick=-1), r"not a tick(?s:.*)tick=-1"),
        (moved(0, kind="sideways"), r"unknown kind(?s:.*)one of forward, backward, inputs, weights"),
    ],
)
def test_what_is_wrong_is_said(actions: list[Action], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        made(actions)


def test_more_activations_than_allowed() -> None:
    with pytest.raises(LayoutError, match=r"stage 0(?s:.*)from tick 1 on it holds 2 microbatches, and may hold 1"):
        made(RIGHT, max_held=1)
    assert made(RIGHT, max_held=2).max_held == 2


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(LayoutError) as error:
        made([dataclasses.replace(RIGHT[0], tick=1), *RIGHT[2:]])
    assert [problem.kind for problem in error.value.problems] == ["missing", "before its input"]


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, zero_bubble, lambda *numbers: interleaved(*numbers, 2)])
@pytest.mark.parametrize(
    ("numbers", "message"), [((2, 0), "num_microbatches=0"), ((0, 2), "num_stages=0"), ((2.0, 2), r"num_stages=2\.0")]
)
def test_a_number_that_is_none(make: Any, numbers: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=f"{message}; it is a whole number from 1"):
        make(*numbers)


@pytest.mark.parametrize("step", [("sideways", 0), ("forward",), ("forward", "0"), "F0"])
def test_an_order_of_something_else(step: Any) -> None:
    with pytest.raises(LayoutError, match=r"not a step: stage 0(?s:.*)its order has (?s:.*)forward, backward, inputs"):
        in_order(lambda stage: [step], 1, 1)


def test_an_order_in_which_stages_wait_for_each_other() -> None:
    def order(stage: int) -> Any:
        return [("backward", 0), ("forward", 0)] if stage else [("forward", 0), ("backward", 0)]

    with pytest.raises(LayoutError) as error:
        in_order(order, 2, 1)
    assert "backward of microbatch 0 on stage 1" in str(error.value)
    assert "it waits for the forward of microbatch 0 on stage 1" in str(error.value)


def test_an_order_that_forgets_one() -> None:
    with pytest.raises(LayoutError, match=r"missing: backward of microbatch 0 on stage 0"):
        in_order(lambda stage: [("forward", 0)], 1, 1)
