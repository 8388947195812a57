"""A schedule whose stages do not take equally long: when each action begins, how much is idle, and a drawing."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from outlay.core.one_line import OneLine
from outlay.schedules.actions import Action
from outlay.schedules.check_schedule import Job, job_of, needs
from outlay.schedules.stage_schedule import StageSchedule

_WIDTH = 100


@dataclass(frozen=True)
class TimedSchedule(OneLine):
    """The actions of a schedule, in its order for each stage, with what each of them takes.

    `str()` draws it: a row for each stage, as long as the actions take.

    Attributes:
        schedule: the schedule.
        forward: what the forward pass of each place takes; place `repeat * num_stages + stage` is a group of layers.
        backward: what its backward pass takes; each of its halves takes half of it.

    Example:
        >>> from outlay import schedules
        >>> timed = schedules.TimedSchedule(schedules.one_f_one_b(2, 2), forward=(1.0, 2.0), backward=(2.0, 4.0))
        >>> timed.span, f"{timed.bubble:.1%}"
        (15.0, '40.0%')
    """

    schedule: StageSchedule
    forward: Sequence[float]
    backward: Sequence[float]

    @functools.cached_property
    def spans(self) -> Mapping[Action, tuple[float, float]]:
        """When each action begins and ends: as soon as its stage is free and its input there."""
        ends: dict[Job, float] = {}
        free = [0.0] * self.schedule.num_stages
        spans = {}
        # In the order of ticks whatever an action needs comes before it.
        for action in self.schedule.actions:
            job = job_of(action)
            inputs = needs(job, self.schedule.num_stages, self.schedule.num_repeats)
            there = [min(ends[one] for one in choices if one in ends) for choices in inputs]
            begin = max([free[action.stage], *there])
            end = begin + self._takes(action)
            free[action.stage] = ends[job] = end
            spans[action] = (begin, end)
        return spans

    def _takes(self, action: Action) -> float:
        place = action.repeat * self.schedule.num_stages + action.stage
        whole = self.forward[place] if action.kind == "forward" else self.backward[place]
        return whole / 2 if action.kind in ("inputs", "weights") else whole

    @property
    def span(self) -> float:
        """From the first action to the end of the last."""
        return max(end for _, end in self.spans.values())

    @property
    def bubble(self) -> float:
        """The share of all stages' time in which nothing is done."""
        busy = sum(end - begin for begin, end in self.spans.values())
        return 1 - busy / (self.span * self.schedule.num_stages)

    def __str__(self) -> str:
        return "\n".join(self._drawn())

    def _drawn(self) -> Iterator[str]:
        front = len(f"stage {self.schedule.num_stages - 1}")
        columns = _WIDTH - front - 1
        for stage, actions in enumerate(self.schedule.by_stage):
            row = ["."] * columns
            for action in actions:
                first, last = (round(each / self.span * columns) for each in self.spans[action])
                row[first:last] = action.label[: last - first].ljust(last - first, "-")
            yield f"stage {stage}".ljust(front) + " " + "".join(row)
