"""Lay out a step's time: its stretches in order, to draw, and its most expensive operations by source line."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from outlay.analysis.attribution.program_facts import CollectiveFacts, Segment
from outlay.analysis.attribution.provenance import Origin, origin_of
from outlay.analysis.cost.lanes import Stretch, TimedBlock, flattened
from outlay.analysis.cost.schedule import Event, Schedule
from outlay.analysis.hlo.hlo_module import HloModule, SourceLine

_COMPUTE = "compute"
_SEEN = 2e-5
"""Seconds from which a pause is shown; shorter ones lie between any two operations."""

NUM_LINES = 20
_LOOKED_AT = 400
"""The most operations whose lines are looked up, most expensive first: thousands of small ones would take seconds."""


def timeline(timed: TimedBlock, collectives: Sequence[CollectiveFacts]) -> tuple[Segment, ...]:
    """Return the stretches of a step; consecutive computations are joined.

    Args:
        timed: the step with the times of its operations.
        collectives: its collectives, for their kinds.
    """
    kinds = {one.name: one.kind for one in collectives}
    merged: list[Segment] = []
    of_lane: dict[str, int] = {}
    for segment in _segments(timed.stretches, 0.0, 1.0, 1, "", kinds):
        at = of_lane.get(segment.lane, -1)
        last = merged[at] if at >= 0 else None
        joined = last is not None and last.kind == segment.kind == _COMPUTE and last.loop == segment.loop
        # A loop is drawn once, as long as all its runs, and the pauses in it are as many times longer.
        if last is not None and joined and segment.begin - last.begin - last.seconds < _SEEN * last.count:
            seconds, waited = segment.begin + segment.seconds - last.begin, last.waited + segment.waited
            merged[at] = replace(last, seconds=seconds, waited=waited)
        else:
            of_lane[segment.lane] = len(merged)
            merged.append(segment)
    return tuple(merged)


def _segments(
    stretches: Sequence[Stretch], begin: float, scale: float, count: int, loop: str, kinds: dict[str, str]
) -> Iterator[Segment]:
    for one in stretches:
        at = begin + scale * one.begin
        if one.part in ("loop", "branch", "call"):
            is_loop = one.part == "loop"
            inner = scale * one.runs if is_loop else scale
            yield from _segments(one.inside, at, inner, count * one.runs, one.name if is_loop else loop, kinds)
        elif one.lane != "fetches":  # waiting for these is part of the computation
            kind = kinds.get(one.name, one.part) if one.lane == "links" else "host" if one.lane == "host" else _COMPUTE
            name = "" if kind == _COMPUTE else one.name
            yield Segment(one.lane, kind, name, at, scale * one.seconds, scale * one.waited, count, loop)


def executed_origins(module: HloModule | None, schedule: Schedule | None) -> Mapping[str, Origin]:
    """Map the name of every instruction of a schedule to its origin in the source; of nothing, nothing."""
    if module is None or schedule is None:
        return {}
    executed = {event.name for events in schedule.blocks.values() for event in events}
    return {
        one.name: origin_of(module, computation.name, one)
        for computation in module.computations.values()
        for one in computation.instructions.values()
        if one.name in executed
    }


@dataclass(frozen=True)
class OperationFacts:
    """Operations of one kind on one line of source.

    Attributes:
        what: the operation of JAX, with its module and phase; the instruction if that is unknown.
        bound_by: `products`, `memory`, `kernels`, or `communication` and `host` that the device waits for.
        seconds: per step.
        share: the share of the step.
        runs: per step.
        flops: per step.
        num_bytes: per step; read and written in memory, or sent.
        source: the line; None if the compiler kept none.
    """

    what: str
    bound_by: str
    seconds: float
    share: float
    runs: int
    flops: float
    num_bytes: int
    source: SourceLine | None


def costliest_operations(module: HloModule, schedule: Schedule, timed: TimedBlock) -> tuple[OperationFacts, ...]:
    """Return what takes most of a step, most expensive first; exchanges and copies count while the device waits.

    Args:
        module: the program.
        schedule: what it does, in order.
        timed: the schedule with times.
    """
    # A fusion may wait for a collective and then work: two events of one name, of which the work is meant.
    events = {event.name: event for events in schedule.blocks.values() for event in events if event.kind != "wait"}
    stretches = [one for one in flattened(timed.stretches) if one.waited and one.lane != "fetches"]
    added: dict[tuple[str, str, SourceLine | None], OperationFacts] = {}
    for one in heapq.nlargest(_LOOKED_AT, stretches, key=lambda one: one.waited * one.runs):
        facts = _facts(module, one, events[one.name], schedule, timed.seconds)
        key = facts.what, facts.bound_by, facts.source
        if key in added:
            sums = ("seconds", "share", "runs", "flops", "num_bytes")
            facts = replace(facts, **{name: getattr(added[key], name) + getattr(facts, name) for name in sums})
        added[key] = facts
    return tuple(heapq.nlargest(NUM_LINES, added.values(), key=lambda each: each.seconds))


def _facts(module: HloModule, one: Stretch, event: Event, schedule: Schedule, whole: float) -> OperationFacts:
    computation, instruction = module.places[one.name]
    origin = origin_of(module, computation.name, instruction)
    what = origin.primitive or instruction.opcode
    if one.lane == "links":
        exchange = schedule.exchanges[event.number]
        what = f"{exchange.kind} of {what}" if origin.primitive else exchange.kind
    sent = schedule.exchanges[event.number].payload_bytes if one.lane == "links" else event.num_bytes
    seconds = one.waited * one.runs
    return OperationFacts(
        what=origin.in_words(what),
        bound_by=one.part,
        seconds=seconds,
        share=seconds / whole if whole else 0.0,
        runs=one.runs,
        flops=event.flops * one.runs,
        num_bytes=sent * one.runs,
        source=origin.source,
    )
