"""Find loops that wait for each exchange because the compiler's scheduler had too little memory to overlap any."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from outlay.analysis.attribution.program_facts import CollectiveFacts, MemoryFacts
from outlay.analysis.cost.lanes import Stretch
from outlay.analysis.findings.finding import Evidence, Finding, first_source
from outlay.core.memory_pool import MEM_FRACTION
from outlay.core.quantities import counted, format_bytes, format_seconds
from outlay.core.runtime_flags import read_flags
from outlay.program.scheduler_memory import SCHEDULER_DEFAULT, SCHEDULER_MEMORY, SCHEDULER_SHARE

_NEAR = 0.99
"""The share of its limit from which the scheduler was short of memory: it stops short of it, or gives up above it."""


def synchronous_loops(evidence: Evidence) -> Iterator[Finding]:
    """Find loops on GPUs whose exchanges all run while nothing computes, in a program that fills its memory."""
    memory, target = evidence.memory, evidence.target
    if memory is None or memory.capacity is None or target is None or target.hardware.kind != "gpu":
        return
    slop, limit = _limit(evidence, memory)
    if memory.temporaries < _NEAR * limit:
        return
    waiting = [_movable(evidence, *loop) for loop in _loops(evidence.stretches)]
    waiting = [(some, seconds) for some, seconds in waiting if seconds]
    seconds = sum(each for _, each in waiting)
    if not waiting:
        return
    collectives = [one for some, _ in waiting for one in some]
    text = (
        f"{counted(len(waiting), 'loop')} of the step {'waits' if len(waiting) == 1 else 'wait'} for "
        f"{counted(len(collectives), 'exchange')} of parameters and gradients while nothing computes, up to "
        f"{format_seconds(seconds)} a step: temporaries of {format_bytes(memory.temporaries)} exceed the "
        f"{format_bytes(int(limit))} that XLA's scheduler plans with ({SCHEDULER_MEMORY}={slop}), and then it "
        "overlaps nothing"
    )
    cost = sum(one.bytes_per_step for one in collectives)
    yield Finding(
        "synchronous-loop", text, _fix(memory, slop), cost, first_source(collectives), len(collectives), seconds
    )


def _limit(evidence: Evidence, memory: MemoryFacts) -> tuple[int, float]:
    """Return the scheduler's memory, as XLA is told and in bytes."""
    asked = evidence.options.values.get(SCHEDULER_MEMORY) if evidence.options else None
    slop = int(asked or read_flags(os.environ.get("XLA_FLAGS", "")).get(SCHEDULER_MEMORY) or SCHEDULER_DEFAULT)
    return slop, _planned(memory, slop)


def _planned(memory: MemoryFacts, slop: int) -> float:
    passed = memory.arguments + memory.outputs - memory.donated
    return max(0.0, SCHEDULER_SHARE * (memory.capacity or 0) - passed) * slop / 100


def _fix(memory: MemoryFacts, slop: int) -> str:
    most = int(100 * memory.most / (memory.capacity or 1) / SCHEDULER_SHARE)
    less = "smaller microbatches (accumulate=...), jax.checkpoint on a layer, or more devices to split over"
    if slop >= most:
        return f"{less}; there is no more memory to plan with"
    share = f"{memory.most / (memory.capacity or 1):.2f}"
    enough = "" if memory.temporaries < _planned(memory, most) else f", and {less}"
    return f"--{SCHEDULER_MEMORY}={most} among the compiler's options, with {MEM_FRACTION}={share} for the run{enough}"


def _loops(stretches: Sequence[Stretch], runs: int = 1) -> Iterator[tuple[Stretch, int]]:
    """Yield the loops of a timed step, each with the turns that it makes in a step."""
    for one in stretches:
        times = runs * one.runs
        if one.part == "loop" and times > 1:
            yield one, times
        yield from _loops(one.inside, times)


def _movable(evidence: Evidence, body: Stretch, turns: int) -> tuple[list[CollectiveFacts], float]:
    """Return the exchanges of a loop that could overlap and do not, and the seconds that this would save at most.

    What parameters and gradients wait for is done in another turn or at its end; values in between are needed at once.
    """
    by_name = {one.name: one for one in evidence.collectives}
    sent = [(one, by_name[one.name]) for one in body.inside if one.lane == "links" and one.name in by_name]
    movable = [(one, facts) for one, facts in sent if not facts.is_async and (facts.leaves or facts.gradients)]
    computing = sum(one.seconds for one in body.inside if one.lane == "compute" and not one.inside)
    seconds = min(sum(one.waited for one, _ in movable), computing) * turns
    return [facts for _, facts in movable], seconds
