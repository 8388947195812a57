"""Everything that an estimate takes for granted, in words."""

from __future__ import annotations

from collections.abc import Iterator

from outlay.meshes.target import Target
from outlay.report.estimate.constants import Constants
from outlay.report.estimate.links import NETWORK_SHARE, RING_SHARE, TORUS_SHARE, crowding
from outlay.report.estimate.schedule import Schedule
from outlay.report.estimate.speeds import product_speed


def assumptions(schedule: Schedule, target: Target, known: Constants) -> tuple[str, ...]:
    """What was assumed of this program on this target, one sentence each."""
    return (*_speeds(schedule, target, known), *_overlap(schedule), *_unknown(schedule))


def _speeds(schedule: Schedule, target: Target, known: Constants) -> Iterator[str]:
    hardware = target.hardware
    events = [event for block in schedule.blocks.values() for event in block if event.flops]
    for dtype in sorted({event.dtype for event in events if not event.kernel}):
        speed, which = product_speed(hardware, dtype)
        less = ", less for small ones" if known.small_product else ""
        yield f"{which}: {known.products:.0%} of {speed / 1e12:.4g} TFLOP/s{less}"
    if kernels := sorted({event.kernel for event in events if event.kernel}):
        yield f"kernels ({', '.join(kernels)}): {known.kernels:.0%} of the peak"
    yield f"every operation reads and writes memory, at {known.memory:.0%} of {_speed(hardware.memory_bandwidth)}"
    if any(event.kind.startswith("copy") for block in schedule.blocks.values() for event in block):
        yield f"between host and device: {_speed(known.host)}"
    if hardware.measured is not None:
        yield (
            f"speeds, collectives and {hardware.measured.seconds_per_operation * 1e6:.3g} us an operation as measured "
            f"by outlay calibrate with {hardware.measured.num_devices} devices busy ({hardware.source})"
        )
        if crowding(target) != 1:
            times = f"{crowding(target):.3g} times as slow each"
            yield f"{target.num_devices} simulated devices share this machine: {times}"
        return
    yield from _links(target)
    yield f"{known.operation * 1e6:.3g} us between operations"
    yield f"the range is {known.spread:.3g} times less to {known.spread:.3g} times more"


def _links(target: Target) -> Iterator[str]:
    hardware = target.hardware
    inside = {"tpu": "torus links", "gpu": "links inside a host"}.get(hardware.kind, "links")
    reached = TORUS_SHARE if hardware.torus_dims else RING_SHARE
    yield (
        f"{inside}: {reached:.0%} of {_speed(hardware.intra_host_link_bandwidth)} a device, "
        f"{hardware.link_latency * 1e6:.3g} us a step, no collective under {hardware.link_floor * 1e6:.3g} us"
    )
    if target.num_hosts > 1 and (hardware.kind == "gpu" or target.num_slices > 1):
        apart = "slices" if hardware.kind == "tpu" else "hosts"
        yield (
            f"between {apart}: {NETWORK_SHARE:.0%} of {_speed(hardware.scale_out_bandwidth)} a device, "
            f"{hardware.scale_out_latency * 1e6:.3g} us a step, nothing under {hardware.scale_out_floor * 1e6:.3g} us, "
            "nobody else on the network"
        )


def _overlap(schedule: Schedule) -> Iterator[str]:
    num_async = sum(one.is_async for one in schedule.exchanges)
    if schedule.exchanges:
        yield (
            f"the {num_async} asynchronous of {len(schedule.exchanges)} collectives run behind what the compiler put "
            "between their start and their end; the device waits for all others"
        )


def _unknown(schedule: Schedule) -> Iterator[str]:
    yield from schedule.unknown
    num_guessed = sum(not one.is_exact for one in schedule.exchanges)
    if num_guessed:
        yield f"{num_guessed} collective(s) in loops of unknown length, counted once, or in branches"
    yield "not counted: reading the batch, saving, waiting for a slower device"


def _speed(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.4g} GB/s"
