"""The schedules of the literature, by the order in which each stage works."""

from __future__ import annotations

import collections
from collections.abc import Callable

from outlay.core.error_types import LayoutError, Problem
from outlay.schedules.check_schedule import check_numbers
from outlay.schedules.stage_schedule import StageSchedule
from outlay.schedules.timing import Step, in_order


def gpipe(num_stages: int, num_microbatches: int) -> StageSchedule:
    """All forward passes, then all backward passes: a stage holds every microbatch.

    Source: Huang et al., GPipe (arXiv:1811.06965).

    Example:
        >>> print(outlay.schedules.gpipe(2, 3))
        gpipe: 2 stages, 3 microbatches: 12 ticks, 25.0 % of them idle
        held at once, by stage: 3, 3
        tick    0  1  2  3  4  5  6  7  8  9  10 11
        stage 0 F0 F1 F2 .  .  .  B0 B0 B1 B1 B2 B2
        stage 1 .  F0 F1 F2 B0 B0 B1 B1 B2 B2 .  .
    """

    def order(_: int) -> list[Step]:
        return [
            *(("forward", microbatch) for microbatch in range(num_microbatches)),
            *(("backward", microbatch) for microbatch in range(num_microbatches)),
        ]

    return in_order(order, num_stages, num_microbatches, name="gpipe")


def one_f_one_b(num_stages: int, num_microbatches: int) -> StageSchedule:
    """One forward, one backward (1F1B): stage i holds at most `num_stages - i` microbatches.

    As many ticks as GPipe. Source: Narayanan et al., PipeDream-Flush (arXiv:2006.09503).

    Example:
        >>> outlay.schedules.one_f_one_b(4, 8).peak_held
        (4, 3, 2, 1)
    """

    def order(stage: int) -> list[Step]:
        # The first backward pass comes after the forward pass that follows these.
        first = min(num_microbatches, num_stages - stage) - 1
        return _alternating(num_microbatches, 1, num_microbatches, first, weights_after=None)

    return in_order(order, num_stages, num_microbatches, name="1f1b")


def interleaved(num_stages: int, num_microbatches: int, num_repeats: int) -> StageSchedule:
    """Interleaved 1F1B: each stage has several groups of layers, and idles as many times less.

    Source: Narayanan et al. (arXiv:2104.04473).

    Args:
        num_stages: groups of devices.
        num_microbatches: equal parts of the batch, a multiple of the rounds that they make: one for every `num_stages`.
        num_repeats: groups of layers of a stage.

    Raises:
        LayoutError: the microbatches do not divide into rounds.

    Example:
        >>> schedule = outlay.schedules.interleaved(4, 8, 2)
        >>> schedule.peak_held, f"{schedule.bubble:.3f}"
        ((11, 9, 7, 5), '0.158')
    """
    each_round = _each_round(num_stages, num_microbatches, num_repeats)

    def order(stage: int) -> list[Step]:
        first = (num_repeats - 1) * each_round + 2 * (num_stages - 1 - stage)
        return _alternating(num_microbatches, num_repeats, each_round, first, weights_after=None)

    return in_order(order, num_stages, num_microbatches, num_repeats, name="interleaved 1f1b")


def zero_bubble(num_stages: int, num_microbatches: int, num_repeats: int = 1) -> StageSchedule:
    """ZB-H1: the backward pass in halves, those for weights where a stage would idle; it holds as much as 1F1B.

    Source: Qi et al., Zero Bubble Pipeline Parallelism (arXiv:2401.10241), section 2.1.

    Args:
        num_stages: groups of devices.
        num_microbatches: equal parts of the batch; with repeats as for `interleaved`.
        num_repeats: groups of layers of a stage.

    Raises:
        LayoutError: the microbatches do not divide into rounds.

    Example:
        >>> print(outlay.schedules.zero_bubble(2, 3))
        zb-h1: 2 stages, 3 microbatches: 10 ticks, 10.0 % of them idle
        held at once, by stage: 2, 2
        tick    0  1  2  3  4  5  6  7  8  9
        stage 0 F0 F1 .  I0 W0 F2 I1 W1 I2 W2
        stage 1 .  F0 I0 F1 I1 W0 F2 I2 W1 W2
    """
    each_round = num_microbatches if num_repeats == 1 else _each_round(num_stages, num_microbatches, num_repeats)

    def order(stage: int) -> list[Step]:
        first = (num_repeats - 1) * each_round + num_stages - 1 - stage
        return _alternating(num_microbatches, num_repeats, each_round, first, weights_after=stage)

    return in_order(order, num_stages, num_microbatches, num_repeats, name="zb-h1")


KNOWN: dict[str, tuple[Callable[..., StageSchedule], bool]] = {
    "gpipe": (gpipe, False),
    "1f1b": (one_f_one_b, False),
    "interleaved": (interleaved, True),
    "zb-h1": (zero_bubble, True),
}
"""The schedules by name, each with whether it takes repeats."""


def _alternating(
    num_microbatches: int, num_repeats: int, each_round: int, first: int, *, weights_after: int | None
) -> list[Step]:
    """Return the order of a stage: some forward passes, then forward and backward in turn, then backward passes.

    Args:
        num_microbatches: equal parts of the batch.
        num_repeats: groups of layers of the stage.
        each_round: how many microbatches one group of layers takes before the next has its turn.
        first: the forward passes before the first pair.
        weights_after: how many backward passes for inputs come before the first for weights; None for whole ones.
    """
    total = num_microbatches * num_repeats
    first = min(first, total)
    forward = _turns(total, each_round, lambda turn: turn % num_repeats)
    backward = _turns(total, each_round, lambda turn: num_repeats - 1 - turn % num_repeats)
    steps: list[Step] = []
    steps.extend(("forward", *job) for job in forward[:first])
    for number, job in enumerate(backward):
        if first + number < total:
            steps.append(("forward", *forward[first + number]))
        steps.append(("backward" if weights_after is None else "inputs", *job))
        if weights_after is not None and number >= weights_after:
            steps.append(("weights", *backward[number - weights_after]))
    if weights_after:
        steps.extend(("weights", *job) for job in backward[max(0, total - weights_after) :])
    return steps


def _turns(total: int, each_round: int, repeat_of: Callable[[int], int]) -> list[tuple[int, int]]:
    """Return which microbatch and repeat come one after the other, each repeat for a round of microbatches."""
    done: dict[int, int] = collections.Counter()
    jobs = []
    for number in range(total):
        repeat = repeat_of(number // each_round)
        jobs.append((done[repeat], repeat))
        done[repeat] += 1
    return jobs


def _each_round(num_stages: int, num_microbatches: int, num_repeats: int) -> int:
    """Return how many microbatches make a round."""
    check_numbers("interleaved", num_stages=num_stages, num_microbatches=num_microbatches, num_repeats=num_repeats)
    rounds = max(1, num_microbatches // num_stages)
    if num_microbatches % rounds:
        fewer, more = num_microbatches - num_microbatches % num_stages, -(-num_microbatches // num_stages) * num_stages
        what = f"{num_microbatches} microbatches do not divide into {rounds} equal rounds of {num_stages} stages"
        raise LayoutError(
            "there is no such schedule:",
            [Problem("uneven rounds", f"num_microbatches={num_microbatches}", what, f"{fewer} or {more} of them")],
        )
    return num_microbatches // rounds
