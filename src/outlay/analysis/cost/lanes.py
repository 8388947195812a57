"""A step in the order of its schedule, on lanes: what computes, goes over links, to the host, from memory to the chip.

Asynchronous exchanges run on their lane from their start; where they are waited for, the device stands still for what
is left of them. A loop runs its body as often as it says: the first round as it stands, all others with what the round
before left under way. Of a branch the dearest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from outlay.analysis.cost.schedule import Event, Schedule

Lane = Literal["compute", "links", "host", "fetches"]
_LANES: dict[str, Lane] = {
    "exchange": "links",
    "start": "links",
    "wait": "links",
    "copy": "host",
    "copy-start": "host",
    "copy-wait": "host",
    "fetch-start": "fetches",
    "fetch-wait": "fetches",
}
WAITED_FOR: dict[Lane, str] = {"links": "communication", "host": "host", "fetches": "memory"}
"""The part of a step's time that waiting for a lane is."""


@dataclass(frozen=True)
class Stretch:
    """What a lane does for a while.

    Attributes:
        lane: which.
        name: of the instruction.
        part: what part of the step's time it is: `products`, `memory`, `kernels`, `communication`, `host`.
        begin: seconds from the start of the block that it stands in; in a loop of one round.
        seconds: how long it takes.
        waited: for how much of it the device does nothing else.
        runs: in a step.
        inside: of a loop one round.
    """

    lane: Lane
    name: str
    part: str
    begin: float
    seconds: float
    waited: float
    runs: int = 1
    inside: tuple[Stretch, ...] = ()


@dataclass
class TimedBlock:
    """A block of a schedule in time: when each lane does what.

    Attributes:
        seconds: until its last event has ended.
        parts: of what that is made, by name; they add up to it.
        stretches: what the lanes do.
        behind: for how long each lane is still busy then.
    """

    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    behind: dict[Lane, float] = field(default_factory=dict)

    def add(self, part: str, seconds: float) -> None:
        """Count seconds in which the device is busy with a part, or stands still for it."""
        self.seconds += seconds
        self.parts[part] = self.parts.get(part, 0.0) + seconds


Cost = Callable[[Event], tuple[str, float, float]]
"""What an event is (a part's name), its seconds on its lane, and seconds that the device spends to begin it."""


class Lanes:
    """Times the blocks of a schedule on lanes.

    Args:
        schedule: what is done, in order.
        cost: what each event takes.
    """

    def __init__(self, schedule: Schedule, cost: Cost) -> None:
        self._blocks = schedule.blocks
        self._cost = cost
        self._known: dict[tuple[str, bool], TimedBlock] = {}

    def time(self, block: str, behind: dict[Lane, float] | None = None) -> TimedBlock:
        """Time a block, with what is under way on the lanes when it begins."""
        key = block, bool(behind)
        if key not in self._known:
            self._known[key] = self._time(self._blocks.get(block, ()), behind or {})
        return self._known[key]

    def _time(self, events: tuple[Event, ...], behind: dict[Lane, float]) -> TimedBlock:
        timed = TimedBlock()
        free = dict(behind)  # when each lane is free again
        ends: dict[tuple[Lane, int], float] = {("links", -1): behind.get("links", 0.0)}
        began: dict[tuple[Lane, int], int] = {}  # where the stretch of what is under way stands
        for event in events:
            if event.kind in ("loop", "branch", "call"):
                self._inside(event, timed, free)
            elif event.kind.endswith("wait"):
                lane = _LANES[event.kind]
                self._wait(timed, ends.pop((lane, event.number), 0.0), lane, began.pop((lane, event.number), None))
            elif event.kind == "work":
                part, seconds, overhead = self._cost(event)
                timed.stretches.append(Stretch("compute", event.name, part, timed.seconds, seconds, seconds))
                timed.add(part, seconds)
                timed.add("overhead", overhead)
            else:
                part, seconds, overhead = self._cost(event)
                lane = _LANES[event.kind]
                timed.add("overhead", overhead)
                begin = max(timed.seconds, free.get(lane, 0.0))
                free[lane] = ends[lane, event.number] = begin + seconds
                began[lane, event.number] = len(timed.stretches)
                timed.stretches.append(Stretch(lane, event.name, part, begin, seconds, 0.0))
                if event.kind in ("exchange", "copy"):
                    self._wait(timed, ends.pop((lane, event.number)), lane, began.pop((lane, event.number)))
        timed.behind = {lane: until - timed.seconds for lane, until in free.items() if until > timed.seconds}
        return timed

    def _wait(self, timed: TimedBlock, until: float, lane: Lane, number: int | None) -> None:
        waited = max(0.0, until - timed.seconds)
        if waited:
            timed.add(WAITED_FOR[lane], waited)
        if number is not None:
            one = timed.stretches[number]
            timed.stretches[number] = replace(one, waited=min(waited, one.seconds))

    def _inside(self, event: Event, timed: TimedBlock, free: dict[Lane, float]) -> None:
        blocks = [self.time(name) for name in event.calls]
        if event.kind == "branch":
            blocks = sorted(blocks, key=lambda block: block.seconds)[-1:]
        if not blocks:
            return
        is_loop = event.kind == "loop"
        runs, begin, (body, *others) = event.runs if is_loop else 1, timed.seconds, blocks
        # All rounds but the first begin with what the round before left under way.
        later = self.time(event.calls[0], body.behind) if is_loop and body.behind and runs > 1 else body
        for block, times in ((body, min(runs, 1)), (later, max(0, runs - 1)), *((each, runs) for each in others)):
            for part, seconds in block.parts.items():
                timed.add(part, seconds * times)
        inside = later.stretches if is_loop else [one for each in blocks for one in each.stretches]
        seconds = timed.seconds - begin
        timed.stretches.append(Stretch("compute", event.name, event.kind, begin, seconds, 0.0, runs, tuple(inside)))
        for lane, left in later.behind.items():
            free[lane] = timed.seconds + left


def flattened(stretches: list[Stretch] | tuple[Stretch, ...], runs: int = 1) -> Iterator[Stretch]:
    """All stretches but loops, each with its runs in a step; those inside of loops stand once."""
    for one in stretches:
        if one.inside or one.part in ("loop", "branch", "call"):
            yield from flattened(one.inside, runs * one.runs)
        else:
            yield replace(one, runs=runs)
