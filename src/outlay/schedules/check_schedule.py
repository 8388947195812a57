"""Check a schedule: every action once, after what it needs, one at a time, and with no more held than allowed."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from outlay.core.error_types import LayoutError, Problem
from outlay.schedules.actions import LETTERS, Action, Kind, by_stage, held_after

Job = tuple[Kind, int, int, int]
"""What is done: the kind, the repeat, the stage and the microbatch."""


class _Given(NamedTuple):
    actions: tuple[Action, ...]
    num_stages: int
    num_microbatches: int
    num_repeats: int


def check_schedule(
    actions: tuple[Action, ...],
    num_stages: int,
    num_microbatches: int,
    num_repeats: int,
    max_held: int | None,
    name: str,
) -> None:
    """Raise with everything that is wrong with a schedule; for the arguments see `StageSchedule`."""
    check_numbers(name, num_stages=num_stages, num_microbatches=num_microbatches, num_repeats=num_repeats)
    given = _Given(actions, num_stages, num_microbatches, num_repeats)
    problems = [*_odd_actions(given)]
    if not problems:
        stages = by_stage(actions, num_stages)
        problems = [*_not_once(given), *_overlapping(stages), *_too_early(given), *_too_many(stages, max_held)]
    if problems:
        raise LayoutError(f"the schedule {name!r} cannot be run:", problems)


def check_numbers(name: str, **numbers: Any) -> None:
    """Raise if what is counted is no whole number from 1."""
    problems = [
        Problem("not a number", each, f"{each}={number!r}; it is a whole number from 1", f"{each}=1 or more")
        for each, number in numbers.items()
        if type(number) is not int or number < 1
    ]
    if problems:
        raise LayoutError(f"the schedule {name!r} cannot be run:", problems)


def needs(job: Job, num_stages: int, num_repeats: int) -> list[list[Job]]:
    """Return what an action needs: of each entry, any of the jobs in it, such as either form of a backward pass."""
    kind, repeat, stage, microbatch = job
    place = repeat * num_stages + stage
    if kind == "forward":
        before = place - 1
        return [[("forward", *divmod(before, num_stages), microbatch)]] if before >= 0 else []
    if kind == "weights":
        return [[("inputs", repeat, stage, microbatch)]]
    own: list[list[Job]] = [[("forward", repeat, stage, microbatch)]]
    if place + 1 == num_stages * num_repeats:
        return own
    after = divmod(place + 1, num_stages)
    return [*own, [("inputs", *after, microbatch), ("backward", *after, microbatch)]]


def job_of(action: Action) -> Job:
    """Return what an action does, without its time."""
    return action.kind, action.repeat, action.stage, action.microbatch


def in_words(job: Job) -> str:
    """Write what is done."""
    kind, repeat, stage, microbatch = job
    what = {"inputs": "backward for inputs", "weights": "backward for weights"}.get(kind, kind)
    again = f", repeat {repeat}" if repeat else ""
    return f"{what} of microbatch {microbatch} on stage {stage}{again}"


def _odd_actions(given: _Given) -> Iterator[Problem]:
    limits = {"stage": given.num_stages, "microbatch": given.num_microbatches, "repeat": given.num_repeats}
    for each in given.actions:
        if each.kind not in LETTERS:
            yield Problem("unknown kind", str(each), f"kind={each.kind!r}", f"one of {', '.join(LETTERS)}")
        if type(each.tick) is not int or each.tick < 0:
            yield Problem("not a tick", str(each), f"tick={each.tick!r}", "a whole number from 0")
        for name, limit in limits.items():
            if getattr(each, name) not in range(limit):
                what = f"{name}={getattr(each, name)!r}, and there are {limit}"
                yield Problem(f"no such {name}", str(each), what, f"a number from 0 to {limit - 1}")


def _not_once(given: _Given) -> Iterator[Problem]:
    times = collections.defaultdict(list)
    for each in given.actions:
        times[job_of(each)].append(each.tick)
    for job, ticks in times.items():
        if len(ticks) > 1:
            at = f"at ticks {' and '.join(map(str, ticks))}"
            yield Problem("twice", in_words(job), f"it is there {len(ticks)} times, {at}", "keep one of them")
    for place in range(given.num_repeats * given.num_stages):
        for microbatch in range(given.num_microbatches):
            of = (*divmod(place, given.num_stages), microbatch)
            have: set[Kind] = {kind for kind in LETTERS if (kind, *of) in times}
            if "backward" in have and have & {"inputs", "weights"}:
                what = "the whole backward pass is there, and a half of it too"
                yield Problem("twice", in_words(("backward", *of)), what, "either backward, or inputs and weights")
            elif missing := _missing(have):
                for kind in missing:
                    yield Problem("missing", in_words((kind, *of)), "it is not there", "add it")


def _missing(have: set[Kind]) -> list[Kind]:
    expected: list[Kind] = ["forward", "inputs", "weights"] if have & {"inputs", "weights"} else ["forward", "backward"]
    return [kind for kind in expected if kind not in have]


def _overlapping(stages: Sequence[Sequence[Action]]) -> Iterator[Problem]:
    for actions in stages:
        for one, other in itertools.pairwise(actions):
            if other.tick < one.end:
                what = f"{in_words(job_of(one))} has tick {one.tick} to {one.end - 1}"
                where = f"{in_words(job_of(other))} at tick {other.tick}"
                yield Problem("two at a time", where, what, f"tick {one.end} or later")


def _too_early(given: _Given) -> Iterator[Problem]:
    ends = {job_of(each): each.end for each in given.actions}
    for each in given.actions:
        for choices in needs(job_of(each), given.num_stages, given.num_repeats):
            job = next((one for one in choices if one in ends), None)
            if job is not None and ends[job] > each.tick:
                what = f"it needs the {in_words(job)}, which ends before tick {ends[job]}"
                where = f"{in_words(job_of(each))} at tick {each.tick}"
                yield Problem("before its input", where, what, f"tick {ends[job]} or later")


def _too_many(stages: Sequence[Sequence[Action]], max_held: int | None) -> Iterator[Problem]:
    for stage, actions in enumerate(stages):
        most = max((held for _, held in held_after(actions)), default=0)
        if max_held is None or most <= max_held:
            continue
        first, held = next((each, held) for each, held in held_after(actions) if held > max_held)
        what = f"from tick {first.tick} on it holds {held} microbatches, and may hold {max_held}"
        fix = f"a backward pass before the {in_words(job_of(first))}, or max_held={most}"
        yield Problem("too many held", f"stage {stage}", what, fix)
