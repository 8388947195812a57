"""Run a schedule: each action of each stage in the order of its ticks, with what moves between stages.

Where things are computed is decided by the `Stages` that are given: in one trace, or each on its own devices. Nothing
waits here for a device. What a microbatch needs for its backward pass is held until that has used it.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, Protocol

from outlay.schedules.stage_schedule import StageSchedule

Values = list[Any]
"""Arrays, in an order that both sides know."""


class Stages(Protocol):
    """The places of a pipeline, wherever they compute; place p is on stage `p % num_stages`.

    What a stage adds up are its sums: for each of its places gradients of layers, and for the stage gradients of shared
    parameters and the sums of the loss.
    """

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
        """Send values to a place from the one before; or back, from the one after."""
        ...


def run_scheduled(schedule: StageSchedule, stages: Stages, parts: Sequence[int], sums: dict[int, Any]) -> list[int]:
    """Run all actions of a schedule.

    Args:
        schedule: the schedule.
        stages: what computes.
        parts: which part of the samples each microbatch is.
        sums: the sums of each stage, which are replaced.

    Returns:
        The most microbatches that each stage held at once, each repeat counted.
    """
    num_places = schedule.num_stages * schedule.num_repeats
    moving: dict[Any, Values] = {}
    held: dict[Any, Values] = {}
    back: dict[Any, Values] = {}
    handed: dict[Any, Values] = {}
    now: collections.Counter[int] = collections.Counter()
    most = [0] * schedule.num_stages
    for action in schedule.actions:
        stage, place = action.stage, action.repeat * schedule.num_stages + action.stage
        job, part = (place, action.microbatch), parts[action.microbatch]
        before, after = (place - 1, action.microbatch), (place + 1, action.microbatch)
        if action.kind == "forward":
            moved, held[job], sums[stage] = stages.forward(place, part, moving.pop(job, []), sums[stage])
            if place + 1 < num_places:
                moving[after] = stages.send(moved, place + 1, back=False)
            now[stage] += 1
            most[stage] = max(most[stage], now[stage])
            continue
        if action.kind == "weights":
            sums[stage] = stages.weights(place, part, held.pop(job), back.pop(job), handed.pop(job), sums[stage])
            now[stage] -= 1
            continue
        if action.kind == "inputs":
            given, handed[job] = stages.inputs(place, part, held[job], back.setdefault(job, []))
        else:
            given, sums[stage] = stages.backward(place, part, held.pop(job), back.pop(job, []), sums[stage])
            now[stage] -= 1
        if place > 0:
            back[before] = stages.send(given, place - 1, back=True)
    return most
