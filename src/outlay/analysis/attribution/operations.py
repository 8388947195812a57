"""The dearest operations of a step by the line that asked for them, and what bounds each."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from outlay.analysis.attribution.who_asked import origin_of
from outlay.analysis.cost.lanes import Laid, Stretch, flattened
from outlay.analysis.cost.schedule import Event, Schedule
from outlay.analysis.hlo.hlo_module import HloModule, SourceLine

NUM_LINES = 20
_LOOKED_AT = 400
"""Operations whose lines are looked up, the dearest ones; thousands of small ones would take seconds."""


@dataclass(frozen=True)
class OperationFacts:
    """Operations of one kind on one line of source.

    Attributes:
        what: the operation of JAX, with its module and phase; of what has none the instruction.
        bound_by: `products`, `memory`, `kernels`, or `communication` and `host` that the device waits for.
        seconds: a step.
        share: of the step.
        runs: a step.
        flops: a step.
        num_bytes: a step; read and written in memory, or sent.
        source: the line; None where the compiler kept none.
    """

    what: str
    bound_by: str
    seconds: float
    share: float
    runs: int
    flops: float
    num_bytes: int
    source: SourceLine | None


def dearest_operations(module: HloModule, schedule: Schedule, laid: Laid) -> tuple[OperationFacts, ...]:
    """What takes most of a step, dearest first; exchanges and copies count by how long the device waits for them.

    Args:
        module: the program.
        schedule: what it does in order.
        laid: the same in time.
    """
    where = {name: block.name for block in module.computations.values() for name in block.instructions}
    events = {event.name: event for events in schedule.blocks.values() for event in events if event.kind != "wait"}
    stretches = [one for one in flattened(laid.stretches) if one.waited and one.lane != "fetches"]
    found: dict[tuple[str, str, SourceLine | None], OperationFacts] = {}
    for one in heapq.nlargest(_LOOKED_AT, stretches, key=lambda one: one.waited * one.runs):
        facts = _facts(module, where[one.name], one, events[one.name], schedule, laid.seconds)
        key = facts.what, facts.bound_by, facts.source
        found[key] = _added(found[key], facts) if key in found else facts
    return tuple(heapq.nlargest(NUM_LINES, found.values(), key=lambda each: each.seconds))


def _facts(
    module: HloModule, block: str, one: Stretch, event: Event, schedule: Schedule, whole: float
) -> OperationFacts:
    instruction = module.computations[block].instructions[one.name]
    origin = origin_of(module, block, instruction)
    what = origin.primitive or instruction.opcode
    if one.lane == "links":
        exchange = schedule.exchanges[event.number]
        what = f"{exchange.kind} of {what}" if origin.primitive else exchange.kind
    words = [what, f"in {origin.module}" if origin.module else "", origin.phase if origin.phase != "other" else ""]
    sent = schedule.exchanges[event.number].payload_bytes if one.lane == "links" else event.num_bytes
    seconds = one.waited * one.runs
    return OperationFacts(
        what=" ".join(word for word in words if word),
        bound_by=one.part,
        seconds=seconds,
        share=seconds / whole if whole else 0.0,
        runs=one.runs,
        flops=event.flops * one.runs,
        num_bytes=sent * one.runs,
        source=origin.source,
    )


def _added(one: OperationFacts, other: OperationFacts) -> OperationFacts:
    sums: Sequence[str] = ("seconds", "share", "runs", "flops", "num_bytes")
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in sums})
