"""Simulate a step in schedule order on lanes: computation, links, host copies, and prefetches from memory to the chip.

A lane does one thing after the other, but for permutations that go round a torus in opposite directions: each has links
of its own, and a product whose input comes from both sides has one of each under way.

An asynchronous collective occupies its lane from its start; at its end, the device waits for the rest of it. A loop
repeats its body: the first iteration starts with idle lanes, all others with what the previous iteration left in
flight. For a branch, the most expensive side counts.
"""

from __future__ import annotations

from collections import deque
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
"""The part of a step's time under which waiting for each lane counts."""


@dataclass(frozen=True)
class Stretch:
    """A stretch of time on a lane.

    Attributes:
        lane: the lane.
        name: the instruction.
        part: the part of the step's time: `products`, `memory`, `kernels`, `communication` or `host`.
        begin: seconds since the start of its block; in a loop, since the start of an iteration.
        seconds: the duration.
        waited: the part of the duration for which the device waits; for a transfer that outlasts its block, in the next
            iteration.
        runs: runs per step.
        inside: for a loop, the stretches of one iteration.
        number: the number of the collective or copy, as in its event.
        way: the direction in which it goes round a torus, while others may go in the opposite one; empty if it uses the
            whole lane.
    """

    lane: Lane
    name: str
    part: str
    begin: float
    seconds: float
    waited: float
    runs: int = 1
    inside: tuple[Stretch, ...] = ()
    number: int = -1
    way: str = ""

    @property
    def end(self) -> float:
        """When it ends, in seconds from the start of the block."""
        return self.begin + self.seconds


@dataclass
class TimedBlock:
    """A block of a schedule, laid out in time.

    Attributes:
        seconds: the time until its last event has ended.
        parts: the parts of `seconds` by name, which sum to it.
        stretches: the stretches on the lanes.
        behind: what is still in flight then, in seconds since that end.
    """

    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    behind: tuple[Stretch, ...] = ()

    def add(self, part: str, seconds: float) -> None:
        """Add seconds in which the device works on a part, or waits for it."""
        self.seconds += seconds
        self.parts[part] = self.parts.get(part, 0.0) + seconds


Cost = Callable[[Event], tuple[str, float, float]]
"""The part of an event, its seconds on its lane, and the seconds that the device spends to launch it."""


class Lanes:
    """Time the blocks of a schedule on lanes."""

    def __init__(self, schedule: Schedule, cost: Cost) -> None:
        self._blocks = schedule.blocks
        self._cost = cost
        self._ways = _ways(schedule)
        self._known: dict[tuple[str, bool], TimedBlock] = {}

    def step(self, entry: str) -> TimedBlock:
        """Time a whole step, which ends only when unfinished transfers have ended."""
        return self._time(self._blocks.get(entry, ()), (), until_idle=True)

    def time(self, block: str, behind: tuple[Stretch, ...] = ()) -> TimedBlock:
        """Time a block, given what is in flight on the lanes when it begins."""
        # A body belongs to one loop, all of whose later iterations find the same in flight: that there is something is
        # enough.
        key = block, bool(behind)
        if key not in self._known:
            self._known[key] = self._time(self._blocks.get(block, ()), behind)
        return self._known[key]

    def _time(self, events: tuple[Event, ...], behind: tuple[Stretch, ...], *, until_idle: bool = False) -> TimedBlock:
        timed = TimedBlock()
        busy = _Busy(behind)
        # An end of number -1 belongs to a start in the iteration before, of which only the lane is known.
        ends: dict[tuple[Lane, int], float] = {("links", -1): busy.until("links")}
        for event in events:
            if event.kind in ("loop", "branch", "call"):
                self._inside(event, timed, busy)
            elif event.kind.endswith("wait"):
                lane = _LANES[event.kind]
                busy.wait(timed, lane, ends.pop((lane, event.number), 0.0))
            elif event.kind == "work":
                part, seconds, overhead = self._cost(event)
                timed.stretches.append(Stretch("compute", event.name, part, timed.seconds, seconds, seconds))
                timed.add(part, seconds)
                timed.add("overhead", overhead)
            else:
                part, seconds, overhead = self._cost(event)
                lane = _LANES[event.kind]
                way = self._ways.get(event.number, "") if lane == "links" else ""
                timed.add("overhead", overhead)
                begin = max(timed.seconds, busy.until(lane, way))
                one = Stretch(lane, event.name, part, begin, seconds, 0.0, number=event.number, way=way)
                busy.add(one)
                timed.stretches.append(one)
                if event.kind in ("exchange", "copy"):
                    busy.wait(timed, lane, begin + seconds)
                else:
                    ends[lane, event.number] = begin + seconds
        if until_idle:
            for lane in WAITED_FOR:
                busy.wait(timed, lane, busy.until(lane))
        waited = busy.waited
        timed.stretches = [
            replace(one, waited=waited[one.lane, one.number]) if (one.lane, one.number) in waited else one
            for one in timed.stretches
        ]
        timed.behind = busy.after(timed.seconds)
        return timed

    def _inside(self, event: Event, timed: TimedBlock, busy: _Busy) -> None:
        blocks = [self.time(name) for name in event.calls]
        if event.kind == "branch":  # only one side runs; adding up both counted it like a loop (decision 27)
            blocks = sorted(blocks, key=lambda block: block.seconds)[-1:]
        if not blocks:
            return
        is_loop = event.kind == "loop"
        runs, begin, (body, *others) = event.runs if is_loop else 1, timed.seconds, blocks
        # All iterations but the first begin with what the previous one left in flight.
        later = self.time(event.calls[0], body.behind) if is_loop and body.behind and runs > 1 else body
        for block, times in ((body, min(runs, 1)), (later, max(0, runs - 1)), *((each, runs) for each in others)):
            for part, seconds in block.parts.items():
                timed.add(part, seconds * times)
        inside = later.stretches if is_loop else [one for each in blocks for one in each.stretches]
        seconds = timed.seconds - begin
        timed.stretches.append(Stretch("compute", event.name, event.kind, begin, seconds, 0.0, runs, tuple(inside)))
        for one in later.behind:
            busy.add(replace(one, begin=timed.seconds + one.begin))


class _Busy:
    """What is under way on the lanes while a block is timed, and for how long the device waits for it.

    Each way of a lane does one thing after the other. So whoever waits for its last has waited for all before it.
    """

    def __init__(self, behind: tuple[Stretch, ...]) -> None:
        self.waited: dict[tuple[Lane, int], float] = {}  # by the number of the exchange or copy
        self._under_way: dict[Lane, deque[Stretch]] = {}
        self._ends: dict[Lane, dict[str, float]] = {}  # by way, when its last has ended
        for one in behind:
            self.add(one)

    def add(self, one: Stretch) -> None:
        """Put a stretch at the end of its lane."""
        self._under_way.setdefault(one.lane, deque()).append(one)
        ends = self._ends.setdefault(one.lane, {})
        ends[one.way] = max(ends.get(one.way, 0.0), one.end)

    def until(self, lane: Lane, way: str = "") -> float:
        """Return when a lane, or one way of it, is free again."""
        ends = self._ends.get(lane, {})
        return max((end for other, end in ends.items() if not way or other in ("", way)), default=0.0)

    def wait(self, timed: TimedBlock, lane: Lane, until: float) -> None:
        """Let the device wait until then."""
        since = timed.seconds
        if until <= since:
            return
        timed.add(WAITED_FOR[lane], until - since)
        under_way = self._under_way.get(lane, deque())
        while under_way and under_way[0].end <= since:
            under_way.popleft()
        for one in under_way:
            part = min(until, one.end) - max(since, one.begin)
            if part > 0:  # of two that are under way at once, the first is waited for
                self.waited[lane, one.number] = self.waited.get((lane, one.number), 0.0) + part
                since += part

    def after(self, seconds: float) -> tuple[Stretch, ...]:
        """Return what is still in flight after a block of that duration, in seconds from its end."""
        every = (one for under_way in self._under_way.values() for one in under_way)
        return tuple(replace(one, begin=one.begin - seconds) for one in every if one.end > seconds)


def _ways(schedule: Schedule) -> dict[int, str]:
    """Return the direction of each permutation that shifts devices of a torus round a ring, by its number."""
    stand, ways = schedule.locations, dict[int, str]()
    for number, one in enumerate(schedule.exchanges):
        if one.kind != "collective-permute" or not (stand and stand[0].coords):
            continue
        pairs = sorted(schedule.groups[one.groups])
        back = sorted((target, source) for source, target in pairs)
        is_inside = all(stand[source].island == stand[target].island for source, target in pairs)
        if is_inside and pairs != back:
            ways[number] = "ahead" if pairs < back else "back"
    return ways


def flattened(stretches: list[Stretch] | tuple[Stretch, ...], runs: int = 1) -> Iterator[Stretch]:
    """Yield all stretches except loops, each with its runs per step; those inside loops appear once."""
    for one in stretches:
        if one.inside or one.part in ("loop", "branch", "call"):
            yield from flattened(one.inside, runs * one.runs)
        else:
            yield one if one.runs == runs else replace(one, runs=runs)
