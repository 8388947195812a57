"""Time the actions of stages whose order is given: each begins as soon as its stage is free and its input there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outlay.core.error_types import LayoutError, Problem
from outlay.schedules.actions import LETTERS, Action, Kind
from outlay.schedules.check_schedule import Job, check_numbers, in_words, needs
from outlay.schedules.stage_schedule import StageSchedule

Step = tuple[Kind, int] | tuple[Kind, int, int]
"""What a stage does next: the kind and the microbatch, and the repeat if there are several."""


def in_order(
    order: Callable[[int], Sequence[Step]],
    num_stages: int,
    num_microbatches: int,
    num_repeats: int = 1,
    *,
    max_held: int | None = None,
    name: str = "schedule",
) -> StageSchedule:
    """Make a schedule of the order in which each stage works, as early as inputs allow.

    Args:
        order: `order(stage)` returns what a stage does, one after the other: `("forward", microbatch)`, `"backward"`,
            or its halves `"inputs"` and `"weights"`, with the repeat as a third entry if there are several.
        num_stages: groups of devices, each with layers of its own.
        num_microbatches: equal parts of the batch.
        num_repeats: how often a microbatch goes round.
        max_held: as for `StageSchedule`.
        name: what it is called.

    Raises:
        LayoutError: stages wait for each other for ever, or the schedule is wrong in another way; see `StageSchedule`.

    Example:
        >>> def all_forward_first(stage):
        ...     return [("forward", 0), ("forward", 1), ("backward", 1), ("backward", 0)]
        >>> print(outlay.schedules.in_order(all_forward_first, num_stages=2, num_microbatches=2))
        schedule: 2 stages, 2 microbatches: 9 ticks, 33.3 % of them idle
        held at once, by stage: 2, 2
        tick    0  1  2  3  4  5  6  7  8
        stage 0 F0 F1 .  .  .  B1 B1 B0 B0
        stage 1 .  F0 F1 B1 B1 B0 B0 .  .
    """
    check_numbers(name, num_stages=num_stages, num_microbatches=num_microbatches, num_repeats=num_repeats)
    steps = {stage: [*order(stage)] for stage in range(num_stages)}
    problems = [_odd(stage, step) for stage, each in steps.items() for step in each if not _is_step(step)]
    if problems:
        raise LayoutError(f"the schedule {name!r} cannot be run:", problems)
    waiting = {stage: [_job(stage, step) for step in each] for stage, each in steps.items()}
    free, ends, actions = dict.fromkeys(waiting, 0), dict[Job, int](), list[Action]()
    while any(waiting.values()):
        before = len(actions)
        for stage, jobs in waiting.items():
            while jobs and (begin := _begin(jobs[0], ends, num_stages, num_repeats)) is not None:
                kind, repeat, _, microbatch = job = jobs.pop(0)
                action = Action(max(begin, free[stage]), stage, microbatch, kind, repeat)
                actions.append(action)
                free[stage] = ends[job] = action.end
        if len(actions) == before:
            raise _stuck(waiting, ends, num_stages, num_repeats, name)
    return StageSchedule(actions, num_stages, num_microbatches, num_repeats, max_held, name)


def _is_step(step: Any) -> bool:
    is_pair = isinstance(step, tuple) and len(step) in (2, 3) and all(type(number) is int for number in step[1:])
    return is_pair and step[0] in LETTERS


def _odd(stage: int, step: Any) -> Problem:
    fix = f'("forward", microbatch), or one of {", ".join(LETTERS)}; the repeat is a third entry'
    return Problem("not a step", f"stage {stage}", f"its order has {step!r}", fix)


def _job(stage: int, step: Step) -> Job:
    kind, microbatch, *repeat = step
    return kind, repeat[0] if repeat else 0, stage, microbatch


def _begin(job: Job, ends: dict[Job, int], num_stages: int, num_repeats: int) -> int | None:
    """Return from when on the inputs of a job are there; None if one is not computed yet."""
    begins = [0]
    for choices in needs(job, num_stages, num_repeats):
        there = [ends[one] for one in choices if one in ends]
        if not there:
            return None
        begins.append(min(there))
    return max(begins)


def _stuck(
    waiting: dict[int, list[Job]], ends: dict[Job, int], num_stages: int, num_repeats: int, name: str
) -> LayoutError:
    problems = []
    for stage, jobs in waiting.items():
        if jobs:
            lacks = [
                choices[0] for choices in needs(jobs[0], num_stages, num_repeats) if not any(c in ends for c in choices)
            ]
            what = f"it waits for the {' and the '.join(map(in_words, lacks))}, which is never done before it"
            problems.append(Problem("waits for ever", in_words(jobs[0]), what, f"another order of stage {stage}"))
    return LayoutError(f"the schedule {name!r} cannot be run:", problems)
