"""Run a schedule: each action of each stage in the order of its ticks, with what moves between stages.

Where things are computed is decided by the `Stages` that are given: in one trace, or each on its own devices. Nothing
waits here for a device. What a microbatch needs for its backward pass is held until that has used it.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from outlay.schedules.actions import CHANGE_OF_HELD
from outlay.schedules.stage_schedule import StageSchedule

Values = list[Any]
"""Arrays, in an order that both sides know."""


class Stages(Protocol):
    """The places of a pipeline, wherever they compute; place p is on stage `p % num_stages`.

    What a stage adds up are its sums: for each of its places gradients of layers, and for the stage gradients of shared
    parameters and the sums of the loss.
    """

    def runs(self, stage: int) -> bool:
        """Return whether this process computes a stage, alone or with others."""
        ...

    def forward(self, place: int, part: int, moving: Values, sums: Any) -> tuple[Values, Values, Any]:
        """Return what moves on, what is residuals, and the sums."""
        ...

    def backward(self, place: int, part: int, held: Values, back: Values, sums: Any) -> tuple[Values, Any]:
        """Return what moves back, and the sums."""
        ...

    def inputs(self, place: int, part: int, held: Values, back: Values) -> tuple[Values, Values]:
        """Return what moves back, and what the half for weights takes."""
        ...

    def weights(self, place: int, part: int, held: Values, back: Values, handed: Values, sums: Any) -> Any:
        """Return the sums."""
        ...

    def send(self, values: Values, place: int, *, back: bool) -> Values:
        """Send values to a place from the one before; or back, from the one after. Empty where another process runs it.

        All processes that run one of the two places send together, the receiving one without values.
        """
        ...


@dataclass(frozen=True)
class _Sent:
    """What moves when an action has ended."""

    tick: int
    values: Values
    place: int
    microbatch: int
    back: bool


def run_scheduled(schedule: StageSchedule, stages: Stages, parts: Sequence[int], sums: dict[int, Any]) -> list[int]:
    """Run all actions of a schedule whose stages this process runs, and take part in what moves from and to them.

    Values move when the action that made them has ended, before those that begin then. All processes go through the
    same actions, so that those that exchange values meet in the same order.

    Args:
        schedule: the schedule.
        stages: what computes.
        parts: which part of the samples each microbatch is.
        sums: the sums of each stage that runs here, which are replaced.

    Returns:
        The most microbatches that each stage held at once, each repeat counted.
    """
    num_places = schedule.num_stages * schedule.num_repeats
    moving: dict[Any, Values] = {}
    held: dict[Any, Values] = {}
    back: dict[Any, Values] = {}
    handed: dict[Any, Values] = {}
    sent: list[_Sent] = []
    now: collections.Counter[int] = collections.Counter()
    most = [0] * schedule.num_stages

    def send_until(tick: int) -> None:
        for each in sorted((each for each in sent if each.tick <= tick), key=lambda each: each.tick):
            sent.remove(each)
            arrived = stages.send(each.values, each.place, back=each.back)
            (back if each.back else moving)[each.place, each.microbatch] = arrived

    for action in schedule.actions:
        send_until(action.tick)
        stage, place = action.stage, action.repeat * schedule.num_stages + action.stage
        job, part, given = (place, action.microbatch), parts[action.microbatch], []
        now[stage] += CHANGE_OF_HELD[action.kind]
        most[stage] = max(most[stage], now[stage])
        if stages.runs(stage):
            if action.kind == "forward":
                given, held[job], sums[stage] = stages.forward(place, part, moving.pop(job, []), sums[stage])
            elif action.kind == "weights":
                sums[stage] = stages.weights(place, part, held.pop(job), back.pop(job), handed.pop(job), sums[stage])
            elif action.kind == "inputs":
                given, handed[job] = stages.inputs(place, part, held[job], back.setdefault(job, []))
            else:
                given, sums[stage] = stages.backward(place, part, held.pop(job), back.pop(job, []), sums[stage])
        if action.kind == "forward" and place + 1 < num_places:
            sent.append(_Sent(action.end, given, place + 1, action.microbatch, back=False))
        elif action.kind in ("backward", "inputs") and place > 0:
            sent.append(_Sent(action.end, given, place - 1, action.microbatch, back=True))
    return most
