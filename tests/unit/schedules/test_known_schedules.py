"""Schedules of the literature: ticks, idle share and activations by the papers' formulas, and the order of others."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from outlay.errors import LayoutError
from outlay.schedules import StageSchedule, gpipe, interleaved, one_f_one_b, zero_bubble

PAIRS = [*itertools.product((2, 3, 4, 8), (8, 12, 16, 24, 64))]
"""Stages and microbatches."""


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "micro"), [*PAIRS, (1, 1), (8, 3), (4, 1)])
def test_ticks_and_bubble_of_gpipe_and_1f1b(make: Callable[[int, int], StageSchedule], stages: int, micro: int) -> None:
    """Huang et al. (2018), section 2.3: (S - 1) / (M + S - 1). A backward pass takes as long as two forward passes."""
    schedule = make(stages, micro)
    assert schedule.num_ticks == 3 * (micro + stages - 1)
    assert schedule.bubble == pytest.approx((stages - 1) / (micro + stages - 1))


@pytest.mark.parametrize(("stages", "micro"), [*PAIRS, (8, 3), (4, 1)])
def test_activations_of_gpipe_and_1f1b(stages: int, micro: int) -> None:
    """GPipe holds all microbatches; 1F1B, as many as stages follow (Narayanan et al., 2021, section 2.2.1)."""
    assert gpipe(stages, micro).peak_held == (micro,) * stages
    assert one_f_one_b(stages, micro).peak_held == tuple(min(stages - stage, micro) for stage in range(stages))


@pytest.mark.parametrize("repeats", [2, 3])
@pytest.mark.parametrize(("stages", "micro"), [pair for pair in PAIRS if pair[1] % pair[0] == 0])
def test_ticks_bubble_and_activations_of_interleaved_1f1b(stages: int, micro: int, repeats: int) -> None:
    """Narayanan et al. (2021), section 2.2.2: the idle time falls to (S - 1) / V, of the whole M + (S - 1) / V."""
    schedule = interleaved(stages, micro, repeats)
    assert schedule.bubble == pytest.approx((stages - 1) / repeats / (micro + (stages - 1) / repeats))
    assert schedule.num_ticks == 3 * (micro * repeats + stages - 1)
    # All that are on their way before the first backward pass, and one more.
    ahead = [(repeats - 1) * stages + 2 * (stages - 1 - stage) + 1 for stage in range(stages)]
    assert schedule.peak_held == tuple(min(each, micro * repeats) for each in ahead)


@pytest.mark.parametrize(("stages", "micro"), PAIRS)
def test_ticks_bubble_and_activations_of_zb_h1(stages: int, micro: int) -> None:
    """Qi et al. (2023), table 2: a stage idles (S - 1) (F + B - W), and holds what the first stage of 1F1B holds."""
    schedule = zero_bubble(stages, micro)
    idle = (stages - 1) * (1 + 1 - 1)
    assert schedule.num_ticks == 3 * micro + idle
    assert schedule.bubble == pytest.approx(idle / (3 * micro + idle))
    assert max(schedule.peak_held) == min(stages, micro)


def order(schedule: StageSchedule) -> list[str]:
    """Write the order of each stage with the groups of layers numbered through, as others do."""
    letters = {"forward": "F", "backward": "B", "inputs": "I", "weights": "W"}
    return [
        " ".join(
            f"{each.repeat * schedule.num_stages + each.stage}{letters[each.kind]}{each.microbatch}" for each in actions
        )
        for actions in schedule.by_stage
    ]


def test_the_order_of_gpipe_and_1f1b_is_that_of_pytorch() -> None:
    assert order(gpipe(2, 3)) == ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"]
    assert order(one_f_one_b(4, 6)) == [
        "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0B3 0B4 0B5",
        "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1B4 1B5",
        "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2B5",
        "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5",
    ]
    assert order(one_f_one_b(3, 2)) == ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1", "2F0 2B0 2F1 2B1"]


def test_the_order_of_interleaved_1f1b_is_that_of_pytorch() -> None:
    assert order(interleaved(2, 4, 2)) == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_the_order_of_zb_h1_is_that_which_pytorch_holds_for_two_stages_of_two_groups() -> None:
    assert order(zero_bubble(2, 8, 2)) == [
        "0F0 0F1 2F0 2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 0F4 2I3 2W3 0F5 0I2 0W2 2F4 0I3 0W3 "
        "2F5 2I4 2W4 0F6 2I5 2W5 0F7 0I4 0W4 2F6 0I5 0W5 2F7 2I6 2W6 2I7 2W7 0I6 0W6 0I7 0W7",
        "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1F4 1I2 3W3 1F5 1I3 1W2 3F4 3I4 "
        "1W3 3F5 3I5 3W4 1F6 1I4 3W5 1F7 1I5 1W4 3F6 3I6 1W5 3F7 3I7 3W6 1I6 3W7 1I7 1W6 1W7",
    ]


def test_the_order_of_zb_h1_of_one_group_each() -> None:
    assert order(zero_bubble(2, 4)) == [
        "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0F3 0I2 0W2 0I3 0W3",
        "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1F3 1I3 1W2 1W3",
    ]


@pytest.mark.parametrize("make", [interleaved, zero_bubble])
def test_microbatches_that_make_no_equal_rounds(make: Callable[[int, int, int], StageSchedule]) -> None:
    with pytest.raises(LayoutError, match=r"9 microbatches do not divide into 2 equal rounds(?s:.*)fix: 8 or 12"):
        make(4, 9, 2)
