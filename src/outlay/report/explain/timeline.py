"""A step in the order of execution: where a device computes, and where it communicates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from outlay.meshes.target import Target
from outlay.report.estimate.links import crowding
from outlay.report.estimate.speeds import product_speed
from outlay.report.explain.facts import CollectiveFacts, Segment
from outlay.report.hlo.module import HloModule
from outlay.report.work.compiled import CompiledWork, Operation

_COMPUTE = "compute"


def timeline(
    module: HloModule, work: CompiledWork, collectives: Sequence[CollectiveFacts], target: Target
) -> tuple[Segment, ...]:
    """The stretches of a step, one after the other: what may overlap does not here.

    A loop's body stands once, its stretches as long as all their runs. Computation takes as long as its products or its
    memory traffic at the full speed of the target, whichever is longer.

    Args:
        module: the scheduled program.
        work: what its instructions compute and move.
        collectives: its collectives, with their seconds.
        target: the hardware.
    """
    operations = {operation.name: operation for operation in work.operations}
    known = {one.name: one for one in collectives}
    merged: list[Segment] = []
    for segment in _segments(module, module.entry, "", operations, known, target):
        last = merged[-1] if merged else None
        if last and last.kind == segment.kind == _COMPUTE and last.loop == segment.loop:
            merged[-1] = Segment(_COMPUTE, "", last.seconds + segment.seconds, last.count, last.loop)
        else:
            merged.append(segment)
    return tuple(merged)


def _segments(
    module: HloModule,
    computation: str,
    loop: str,
    operations: Mapping[str, Operation],
    collectives: Mapping[str, CollectiveFacts],
    target: Target,
) -> Iterator[Segment]:
    for one in module.computations[computation].instructions.values():
        if one.name in collectives:
            found = collectives[one.name]
            yield Segment(found.kind, one.name, (found.seconds or 0.0) * found.count, found.count, loop)
        elif one.name in operations:
            operation = operations[one.name]
            yield Segment(_COMPUTE, "", _seconds(operation, target) * operation.runs, operation.runs, loop)
        elif one.opcode in ("while", "call", "conditional"):
            inside = one.name if one.opcode == "while" else loop
            for name in one.calls:
                if name in module.computations and name != one.called("condition"):
                    yield from _segments(module, name, inside, operations, collectives, target)


def _seconds(operation: Operation, target: Target) -> float:
    hardware = target.hardware
    product = operation.flops / product_speed(hardware, operation.dtype)[0] if operation.flops else 0.0
    return max(product, operation.num_bytes / hardware.memory_bandwidth) * crowding(target)
