"""Price a schedule with the speeds of a target: the time of a step, its range and its parts. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from outlay.analysis.cost.constants import Constants, Table, constants_of, product_speed
from outlay.analysis.cost.estimate import PARTS, WAITING, Estimate, Transfer
from outlay.analysis.cost.lanes import Lanes, Stretch, TimedBlock, flattened
from outlay.analysis.cost.links import NETWORK_SHARE, RING_SHARE, TORUS_SHARE, collective_seconds, crowding
from outlay.analysis.cost.schedule import Event, Schedule
from outlay.core.error_types import ExplainError
from outlay.core.quantities import counted, format_seconds
from outlay.devices.hardware import Hardware
from outlay.devices.target import Target

MOST_ROUNDS = 10
"""The iterations of a loop of unknown length at the upper end of the range; at the lower end it does not run."""


def price(
    schedule: Schedule,
    target: Target | str | None = None,
    *,
    constants: Table | None = None,
    timed: TimedBlock | None = None,
) -> Estimate:
    """Estimate the time of a step and its parts.

    Args:
        schedule: the schedule of a device.
        target: the hardware; None for that of the schedule.
        constants: the fractions of the data sheet that hardware reaches; None for the built-in ones.
        timed: the result of `time_on_lanes` with the same arguments, if it is known.

    Raises:
        ExplainError: the hardware is unknown, or has another number of devices.
    """
    hardware = _target(schedule, target)
    timed = timed or time_on_lanes(schedule, hardware, constants=constants)
    known = constants_of(hardware.hardware, constants)
    step = known.step * crowding(hardware)
    parts = {name: timed.parts.get(name, 0.0) for name in PARTS}
    parts["overhead"] += step if timed.seconds else 0.0
    # All wait for the slowest host, and of more hosts the slowest is slower.
    parts["overhead"] += sum(parts.values()) * known.slowest * math.log2(hardware.num_islands)
    seconds = sum(parts.values())
    # A loop of unknown length counts once above; the range takes it from never to often.
    uncounted = _uncounted(schedule, timed.stretches)
    events = _events(schedule)
    counted_share = 1 - uncounted / seconds if seconds else 1.0
    more_rounds = 1 + (MOST_ROUNDS - 1) * uncounted / seconds if seconds else 1.0
    spread = {name: known.spread_waiting if name in WAITING else known.spread for name in parts}
    done = [(events[one.name], one.runs) for one in flattened(timed.stretches) if one.lane == "compute"]
    transfers = _transfers(schedule, timed)
    return Estimate(
        target=str(hardware),
        num_devices=hardware.num_devices,
        measured=hardware.hardware.measured is not None,
        seconds=seconds,
        seconds_low=sum(value / spread[name] for name, value in parts.items()) * counted_share,
        seconds_high=sum(value * spread[name] for name, value in parts.items()) * more_rounds,
        parts=parts,
        hidden=_hidden(sum(one.seconds for one in transfers), parts["communication"]),
        flops=sum(event.flops * runs for event, runs in done),
        bytes_accessed=float(sum(event.num_bytes * runs for event, runs in done)),
        transfers=transfers,
        assumptions=(*assumptions(schedule, hardware, known), *_rounds(schedule, uncounted)),
    )


def _hidden(sent: float, waited: float) -> float:
    """Return the seconds of communication that nothing waits for."""
    # Both add up the same times, in another order: if nothing is hidden, rounding is what is left.
    return 0.0 if math.isclose(sent, waited) else max(0.0, sent - waited)


def time_on_lanes(
    schedule: Schedule, target: Target | str | None = None, *, constants: Table | None = None
) -> TimedBlock:
    """Time a step on its lanes; for the arguments see `price`."""
    hardware = _target(schedule, target)
    cost = _costs(schedule, hardware, constants_of(hardware.hardware, constants))
    return Lanes(schedule, cost).step(schedule.entry)


def _target(schedule: Schedule, target: Target | str | None) -> Target:
    hardware = target if target is not None else schedule.target
    if not hardware:
        raise ExplainError(
            "the hardware is unknown, so there is no estimate\n"
            '  fix: outlay.estimate(..., target="h100:1x8"), or a mesh made with outlay.mesh(..., target="h100:1x8")'
        )
    known = Target.parse(hardware) if isinstance(hardware, str) else hardware
    check_num_devices(schedule.num_devices, known)
    return known


def check_num_devices(num: int, target: Target) -> None:
    """Raise an error if a program is for another number of devices than a target has.

    Raises:
        ExplainError: it is.
    """
    if target.num_devices != num:
        raise ExplainError(
            f"the program is for {counted(num, 'device')}, but {target} has {target.num_devices}\n"
            f"  fix: a target of {num} devices, or a mesh for that target: outlay.mesh(..., target={str(target)!r})"
        )


def _islands(target: Target) -> str:
    return counted(target.num_islands, target.island)


def _events(schedule: Schedule) -> dict[str, Event]:
    """Map the name of each instruction to its event."""
    timed = ("work", "exchange", "start", "copy", "copy-start", "fetch-start")
    return {event.name: event for events in schedule.blocks.values() for event in events if event.kind in timed}


def _uncounted(schedule: Schedule, stretches: Sequence[Stretch], runs: int = 1) -> float:
    """Sum the seconds of one iteration of each loop of unknown length."""
    names = {event.name for block in schedule.blocks.values() for event in block if not event.is_counted}
    seconds = 0.0
    for one in stretches if names else ():
        is_loop = one.name in names
        seconds += one.seconds * runs if is_loop else _uncounted(schedule, one.inside, runs * one.runs)
    return seconds


def _costs(schedule: Schedule, target: Target, known: Constants) -> Callable[[Event], tuple[str, float, float]]:
    """Return the cost function: the part of an event, its duration, and the time to launch it."""
    crowd, hardware = crowding(target), target.hardware
    exchanged: dict[tuple[str, int, int], float] = {}

    def exchange(number: int) -> float:
        # Layers exchange alike, and a body is laid out twice: for its first iteration, and for all others.
        one = schedule.exchanges[number]
        alike = one.kind, one.payload_bytes, one.groups
        if alike not in exchanged:
            groups, locations = schedule.groups[one.groups], schedule.locations or None
            exchanged[alike] = collective_seconds(one.kind, one.payload_bytes, groups, target, locations=locations)
        return exchanged[alike]

    def cost(event: Event) -> tuple[str, float, float]:
        overhead = known.operation * crowd
        if event.kind in ("exchange", "start"):
            return "communication", exchange(event.number), overhead
        if event.kind in ("copy", "copy-start"):
            return "host", event.num_bytes / hardware.host_link_bandwidth * crowd, overhead
        if event.kind == "fetch-start":
            return "memory", event.num_bytes / hardware.memory_bandwidth / known.memory * crowd, 0.0
        product, moving = _product(event, hardware, known), moving_seconds(event, hardware) / known.memory
        part = "kernels" if event.kernel else "products" if product > moving else "memory"
        return part, max(product, moving) * crowd, overhead

    return cost


def _product(event: Event, hardware: Hardware, known: Constants) -> float:
    if not event.flops:
        return 0.0
    share = known.kernels if event.kernel else known.products
    seconds = event.flops / product_speed(hardware, event.dtype or "bfloat16")[0] / share / hardware.clock_share
    # The shorter a product, the less of the device it fills.
    return seconds * (1 + (known.small_product / seconds) ** known.small_power if known.small_product else 1)


def moving_seconds(event: Event, hardware: Hardware) -> float:
    """Return the seconds of reading and writing; reads across rows count separately if measured, as on CPUs."""
    if hardware.measured is None:
        return event.num_bytes / hardware.memory_bandwidth
    straight = max(0, event.num_bytes - sum(num_bytes for num_bytes, _ in event.across_rows))
    slow = [hardware.measured.seconds_across_rows(num_bytes, pitch) for num_bytes, pitch in event.across_rows]
    return straight / hardware.memory_bandwidth + sum(slow)


def _transfers(schedule: Schedule, timed: TimedBlock) -> tuple[Transfer, ...]:
    """Sum the collectives by kind and axes, most expensive first."""
    sums: dict[tuple[str, tuple[str, ...], int], list[float]] = {}
    for one in flattened(timed.stretches):
        if one.lane == "links":
            exchange = schedule.exchanges[one.number]
            size = max(map(len, schedule.groups[exchange.groups]), default=1)
            so_far = sums.get((exchange.kind, exchange.axes, size), [0, 0, 0.0, 0.0])
            each = (1, exchange.payload_bytes, one.seconds, one.waited)
            sums[exchange.kind, exchange.axes, size] = [a + b * one.runs for a, b in zip(so_far, each, strict=True)]
    added = [Transfer(*key, int(runs), int(size), *seconds) for key, (runs, size, *seconds) in sums.items()]
    return tuple(sorted(added, key=lambda transfer: -transfer.seconds))


def assumptions(schedule: Schedule, target: Target, known: Constants) -> tuple[str, ...]:
    """List the assumptions about this program on this target, one sentence each."""
    return (*_speeds(schedule, target, known), *_overlap(schedule), *_unknown(schedule))


def _speeds(schedule: Schedule, target: Target, known: Constants) -> Iterator[str]:
    hardware = target.hardware
    events = [event for block in schedule.blocks.values() for event in block if event.flops]
    for dtype in sorted({event.dtype for event in events if not event.kernel}):
        speed, which = product_speed(hardware, dtype)
        less = ", less for small products" if known.small_product else ""
        yield f"{which}: {known.products:.0%} of {speed / 1e12:.4g} TFLOP/s{less}"
    if hardware.clock_share < 1:
        yield f"products and kernels at {hardware.clock_share:.0%} of the clock, by the target's limit"
    if kernels := sorted({event.kernel for event in events if event.kernel}):
        yield f"kernels ({', '.join(kernels)}): {known.kernels:.0%} of the peak"
    yield f"every operation reads and writes memory, at {known.memory:.0%} of {_speed(hardware.memory_bandwidth)}"
    if any(event.kind.startswith("copy") for block in schedule.blocks.values() for event in block):
        yield f"between host and device: {_speed(hardware.host_link_bandwidth)}"
    if hardware.measured is not None:
        yield (
            f"speeds, collectives and {format_seconds(hardware.measured.seconds_per_operation)} an operation as "
            f"measured by outlay calibrate with {hardware.measured.num_devices} devices busy ({hardware.source})"
        )
        if crowding(target) != 1:
            times = f"{crowding(target):.3g} times as slow"
            yield f"{target.num_devices} simulated devices share this machine: each is {times}"
        return
    yield from _links(target)
    if target.num_islands > 1:
        yield f"waiting for the slowest of {_islands(target)}: {known.slowest:.1%} per doubling of their number"
    yield f"{format_seconds(known.operation)} between operations"
    yield (
        f"the range extends by a factor of {known.spread:.3g} each way, and of {known.spread_waiting:.3g} for "
        f"{', '.join(WAITING)}"
    )


def _links(target: Target) -> Iterator[str]:
    hardware = target.hardware
    inside = {"tpu": "torus links", "gpu": "links inside a host"}.get(hardware.kind, "links")
    reached = TORUS_SHARE if hardware.torus_dims else RING_SHARE
    yield (
        f"{inside}: {reached:.0%} of {_speed(hardware.intra_host_link_bandwidth)} a device, "
        f"{format_seconds(hardware.link_latency)} a step, no collective under {format_seconds(hardware.link_floor)}"
    )
    if target.num_islands > 1:
        yield (
            f"between {_islands(target)}: {NETWORK_SHARE:.0%} of {_speed(hardware.scale_out_bandwidth)} a device, "
            f"{format_seconds(hardware.scale_out_latency)} a step, nothing under "
            f"{format_seconds(hardware.scale_out_floor)}, nobody else on the network"
        )


def _overlap(schedule: Schedule) -> Iterator[str]:
    num_async = sum(one.is_async for one in schedule.exchanges)
    if schedule.exchanges:
        yield (
            f"{num_async} of {len(schedule.exchanges)} collectives are asynchronous and overlap with what the compiler "
            "scheduled between their start and end; the device waits for all others"
        )


def _rounds(schedule: Schedule, uncounted: float) -> Iterator[str]:
    names = [event.name for block in schedule.blocks.values() for event in block if not event.is_counted]
    if names:
        yield (
            f"{counted(len(names), 'loop')} of unknown length ({', '.join(names[:3])}{', ...' if names[3:] else ''}) "
            f"counted once, {format_seconds(uncounted)}; the range covers 0 to {MOST_ROUNDS} iterations"
        )


def _unknown(schedule: Schedule) -> Iterator[str]:
    yield from schedule.unknown
    num_guessed = sum(not one.is_exact for one in schedule.exchanges)
    if num_guessed:
        yield f"{counted(num_guessed, 'collective')} in loops of unknown length, counted once, or in branches"
    yield "not counted: reading the batch, saving checkpoints"


def _speed(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.4g} GB/s"
