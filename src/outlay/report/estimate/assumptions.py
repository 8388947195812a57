"""Everything that an estimate takes for granted, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlay.meshes.target import Target
from outlay.report.estimate.links import NETWORK_SHARE, RING_SHARE, TORUS_SHARE, crowding
from outlay.report.estimate.speeds import Range, product_speed, reach_of
from outlay.report.hlo.collective import HloCollective
from outlay.report.work.compiled import CompiledWork


def assumptions(work: CompiledWork, collectives: Sequence[HloCollective], target: Target) -> tuple[str, ...]:
    """What was assumed of this program on this target, one sentence each."""
    return (*_speeds(work, target), *_overlap(collectives), *_unknown(work, collectives))


def _speeds(work: CompiledWork, target: Target) -> Iterator[str]:
    hardware, reach = target.hardware, reach_of(target.hardware)
    for dtype in sorted(work.flops_by_dtype):
        speed, which = product_speed(hardware, dtype)
        yield f"{which}: {_percent(reach.products)} of {speed / 1e12:.4g} TFLOP/s"
    yield f"every operation reads and writes memory, at {_percent(reach.memory)} of {_speed(hardware.memory_bandwidth)}"
    if hardware.measured is not None:
        yield (
            f"speeds, collectives and {hardware.measured.seconds_per_operation * 1e6:.3g} us an operation as measured "
            f"by outlay calibrate with {hardware.measured.num_devices} devices busy ({hardware.source})"
        )
        if crowding(target) != 1:
            times = f"{crowding(target):.3g} times as slow each"
            yield f"{target.num_devices} simulated devices share this machine: {times}"
        return
    yield from _links(target, reach.links)
    if reach.seconds_per_operation.high:
        yield f"{_span(reach.seconds_per_operation)} us between operations"


def _links(target: Target, share: Range) -> Iterator[str]:
    hardware = target.hardware
    inside = {"tpu": "torus links", "gpu": "links inside a host"}.get(hardware.kind, "links")
    reached = TORUS_SHARE if hardware.torus_dims else RING_SHARE
    yield (
        f"{inside}: {100 * reached:.0f} % of {_speed(hardware.intra_host_link_bandwidth)} a device, "
        f"{hardware.link_latency * 1e6:.3g} us a step, no collective under {hardware.link_floor * 1e6:.3g} us"
    )
    if target.num_hosts > 1 and (hardware.kind == "gpu" or target.num_slices > 1):
        apart = "slices" if hardware.kind == "tpu" else "hosts"
        yield (
            f"between {apart}: {100 * NETWORK_SHARE:.0f} % of {_speed(hardware.scale_out_bandwidth)} a device, "
            f"{hardware.scale_out_latency * 1e6:.3g} us a step, nothing under {hardware.scale_out_floor * 1e6:.3g} us, "
            "nobody else on the network"
        )
    yield f"all collectives at {_percent(share)} of the speed that this comes to"


def _overlap(collectives: Sequence[HloCollective]) -> Iterator[str]:
    num_async = sum(one.is_async for one in collectives)
    if collectives:
        yield (
            f"at best the {num_async} asynchronous of {len(collectives)} collectives run behind the computation, "
            "at worst nothing overlaps"
        )


def _unknown(work: CompiledWork, collectives: Sequence[HloCollective]) -> Iterator[str]:
    yield from work.unknown
    num_guessed = sum(not one.count_is_exact for one in collectives)
    if num_guessed:
        yield f"{num_guessed} collective(s) in loops of unknown length or in branches: counted once"
    yield "not counted: reading the batch, saving, waiting for a slower device"


def _percent(share: Range) -> str:
    return f"{100 * share.low:.0f} to {100 * share.high:.0f} %"


def _span(span: Range) -> str:
    return f"{span.low * 1e6:.3g} to {span.high * 1e6:.3g}"


def _speed(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.4g} GB/s"
