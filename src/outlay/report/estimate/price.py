"""Work and collectives over the speeds of a target: a range of seconds, and what it is made of."""

from __future__ import annotations

from collections.abc import Sequence

from outlay.meshes.hardware import Hardware
from outlay.meshes.target import Target
from outlay.report.estimate.assumptions import assumptions
from outlay.report.estimate.facts import Estimate, Transfer
from outlay.report.estimate.links import collective_seconds, crowding, payload_bytes
from outlay.report.estimate.places import Place
from outlay.report.estimate.speeds import Range, Reach, product_speed, reach_of
from outlay.report.hlo.axes import axes_of
from outlay.report.hlo.collective import HloCollective
from outlay.report.work.compiled import CompiledWork, Operation


def price(
    work: CompiledWork,
    collectives: Sequence[HloCollective],
    target: Target,
    *,
    places: Sequence[Place] | None = None,
    mesh_axes: Sequence[tuple[str, int]] = (),
) -> Estimate:
    """What a step would take.

    A device's operation takes as long as its products or its memory traffic, whichever is longer (the roofline model);
    the lower bound lets asynchronous collectives run beside them, the upper bound adds everything up.

    Args:
        work: of one device.
        collectives: of the program.
        target: the hardware.
        places: where the program's devices stand; without them, in the order of the target.
        mesh_axes: (name, size) of the mesh's axes, to name what collectives run over.
    """
    reach = reach_of(target.hardware)
    at_full_speed = [
        collective_seconds(one.kind, payload_bytes(one), one.groups, target, places=places) * one.count
        for one in collectives
    ]
    compute, memory = _compute(work, target, reach), _memory(work, target, reach)
    overhead = _overhead(work.num_runs + sum(one.count for one in collectives), target, reach)
    communication = _divided(sum(at_full_speed), reach.links)
    behind = sum(seconds for one, seconds in zip(collectives, at_full_speed, strict=True) if one.is_async)
    hidden = min(behind / reach.links.high, compute.low + memory.low)
    parts = compute + memory + communication + overhead
    return Estimate(
        target=str(target),
        num_devices=target.num_devices,
        measured=target.hardware.measured is not None,
        seconds_low=parts.low - hidden,
        seconds_high=parts.high,
        compute=compute,
        memory=memory,
        communication=communication,
        overhead=overhead,
        flops=work.flops,
        bytes_accessed=work.bytes_accessed,
        transfers=_transfers(collectives, at_full_speed, mesh_axes),
        assumptions=assumptions(work, collectives, target),
    )


def _divided(seconds: float, share: Range) -> Range:
    """What takes so long at full speed, at the share of it that is reached."""
    return Range(seconds / share.high, seconds / share.low)


def _compute(work: CompiledWork, target: Target, reach: Reach) -> Range:
    hardware = target.hardware
    at_full_speed = sum(flops / product_speed(hardware, dtype)[0] for dtype, flops in work.flops_by_dtype.items())
    return _divided(at_full_speed * crowding(target), reach.products)


def _memory(work: CompiledWork, target: Target, reach: Reach) -> Range:
    """At best a product moves its operands while it multiplies, and only what takes longer counts."""
    hardware = target.hardware
    low = high = 0.0
    for one in work.operations:
        seconds = _moving(one, hardware)
        product = one.flops / product_speed(hardware, one.dtype)[0] if one.flops else 0.0
        low += one.runs * max(0.0, seconds / reach.memory.high - product / reach.products.high)
        high += one.runs * seconds / reach.memory.low
    return Range(low * crowding(target), high * crowding(target))


def _moving(one: Operation, hardware: Hardware) -> float:
    """Where it was measured what reading across rows costs, that is told apart; accelerators transpose on the way."""
    if hardware.measured is None:
        return one.num_bytes / hardware.memory_bandwidth
    straight = max(0, one.num_bytes - sum(across.num_bytes for across in one.across_rows))
    slow = [hardware.measured.seconds_across_rows(across.num_bytes, across.pitch) for across in one.across_rows]
    return straight / hardware.memory_bandwidth + sum(slow)


def _overhead(num_runs: int, target: Target, reach: Reach) -> Range:
    operation, step, crowd = reach.seconds_per_operation, reach.seconds_per_step, crowding(target)
    return Range((step.low + num_runs * operation.low) * crowd, (step.high + num_runs * operation.high) * crowd)


def _transfers(
    collectives: Sequence[HloCollective], seconds: Sequence[float], mesh_axes: Sequence[tuple[str, int]]
) -> tuple[Transfer, ...]:
    """The collectives added up by kind and axes, dearest first."""
    found: dict[tuple[str, tuple[str, ...], int], list[float]] = {}
    for one, time in zip(collectives, seconds, strict=True):
        axes = axes_of(one.groups, mesh_axes, permutation=one.kind == "collective-permute") if mesh_axes else ()
        sums = found.setdefault((one.kind, axes, one.group_size), [0, 0, 0.0])
        for i, value in enumerate((one.count, payload_bytes(one) * one.count, time)):
            sums[i] += value
    added = [Transfer(*key, int(runs), int(payload), time) for key, (runs, payload, time) in found.items()]
    return tuple(sorted(added, key=lambda transfer: -transfer.seconds))
