"""A schedule: actions of the stages of a pipeline, checked, counted, and drawn as text."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from outlay.core.quantities import counted
from outlay.schedules.actions import NUM_TICKS, Action, by_stage, held_after
from outlay.schedules.check_schedule import check_schedule

_WIDTH = 100


@dataclass(frozen=True)
class StageSchedule:
    """Which stage of a pipeline works on what, and when.

    It is checked as it is made. `str()` draws it: a row for each stage, a column for each tick.

    Attributes:
        actions: what the stages do, in any order.
        num_stages: groups of devices, each with layers of its own.
        num_microbatches: equal parts of the batch.
        num_repeats: how often a microbatch goes round.
        max_held: the most microbatches that a stage may hold activations of, each repeat counted; None for any number.
        name: what it is called.

    Raises:
        LayoutError: an action begins before its input is there, two of a stage overlap, one is missing or is there
            twice, or a stage holds more than it may. All are listed.

    Example:
        >>> from outlay.schedules import Action, StageSchedule
        >>> one_stage = [Action(0, 0, 0, "forward"), Action(1, 0, 0, "backward")]
        >>> StageSchedule(one_stage, num_stages=1, num_microbatches=1).num_ticks
        3
    """

    actions: Iterable[Action]
    num_stages: int
    num_microbatches: int
    num_repeats: int = 1
    max_held: int | None = None
    name: str = "schedule"

    def __post_init__(self) -> None:
        actions = tuple(self.actions)
        check_schedule(actions, self.num_stages, self.num_microbatches, self.num_repeats, self.max_held, self.name)
        object.__setattr__(self, "actions", tuple(sorted(actions)))

    @functools.cached_property
    def by_stage(self) -> tuple[tuple[Action, ...], ...]:
        """The actions of each stage, in their order."""
        return by_stage(self.actions, self.num_stages)

    @property
    def num_ticks(self) -> int:
        """The ticks until the last action has ended."""
        return max((each.end for each in self.actions), default=0)

    @property
    def bubble(self) -> float:
        """The share of all stages' ticks in which nothing is done."""
        busy = sum(NUM_TICKS[each.kind] for each in self.actions)
        return 1 - busy / (self.num_ticks * self.num_stages)

    @property
    def peak_held(self) -> tuple[int, ...]:
        """The most microbatches, each repeat counted, whose activations each stage holds at once.

        From the forward pass until the backward pass has ended; of halves, the one for weights.
        """
        return tuple(max(held for _, held in held_after(actions)) for actions in self.by_stage)

    def to_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "name": self.name,
            "num_stages": self.num_stages,
            "num_microbatches": self.num_microbatches,
            "num_repeats": self.num_repeats,
            "num_ticks": self.num_ticks,
            "bubble": self.bubble,
            "peak_held": list(self.peak_held),
            "actions": [[each.tick, each.stage, each.repeat, each.microbatch, each.kind] for each in self.actions],
        }

    def __str__(self) -> str:
        rounds = f", {self.num_repeats} repeats" if self.num_repeats > 1 else ""
        head = (
            f"{self.name}: {counted(self.num_stages, 'stage')}, "
            f"{counted(self.num_microbatches, 'microbatch', 'microbatches')}{rounds}: "
            f"{counted(self.num_ticks, 'tick')}, {100 * self.bubble:.1f} % of them idle"
        )
        held = f"held at once, by stage: {', '.join(map(str, self.peak_held))}"
        return "\n".join([head, held, *self._drawn()])

    def _drawn(self) -> Iterator[str]:
        """Yield rows of stages over columns of ticks, in bands that fit a page."""
        cells = collections.defaultdict(lambda: ".")
        for each in self.actions:
            cells.update({(each.stage, tick): each.label for tick in range(each.tick, each.end)})
        size = max(len(str(self.num_ticks)), *(len(each.label) for each in self.actions))
        front = len(f"stage {self.num_stages - 1}")
        columns = max(1, (_WIDTH - front) // (size + 1))
        for first in range(0, self.num_ticks, columns):
            ticks = range(first, min(first + columns, self.num_ticks))
            yield " ".join(["tick".ljust(front), *(f"{tick:<{size}}" for tick in ticks)]).rstrip()
            for stage in range(self.num_stages):
                row = (f"{cells[stage, tick]:<{size}}" for tick in ticks)
                yield " ".join([f"stage {stage}".ljust(front), *row]).rstrip()
