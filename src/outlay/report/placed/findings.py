"""What costs more than it must in a placed program, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from outlay.report.estimate.render import format_seconds
from outlay.report.finding import Finding
from outlay.report.placed.words import largest, rate

if TYPE_CHECKING:
    from outlay.report.placed.explanation import PlacedExplanation

_FAR = 0.75
"""Share of the devices' number below which the best gain is said to be bounded by one part."""


def find(found: PlacedExplanation) -> tuple[Finding, ...]:
    """Every finding."""
    return (*_dominant(found), *_unbalanced(found), *_exchange(found), *_idle(found))


def _dominant(found: PlacedExplanation) -> Iterator[Finding]:
    """One part is so much of the work that devices for the others gain little."""
    if len(found.parts) < 2 or found.best_gain >= _FAR * found.mesh.num_devices:
        return
    part = max(found.parts, key=lambda one: one.share)
    yield Finding(
        "dominant-part",
        f"{largest(found)}, whatever number of devices there are",
        f'split it over several devices: outlay.by_module({{..., "{part.name}": [0, 1]}}), or everything: '
        "outlay.by_neuron()",
        int(part.bytes_accessed),
    )


def _unbalanced(found: PlacedExplanation) -> Iterator[Finding]:
    """Several parts share the busiest device, and what could be reached is far."""
    busiest = max(found.work_by_device, key=lambda device: found.work_by_device[device])
    there = [part for part in found.parts if busiest in part.devices]
    reachable = min(found.best_gain, found.mesh.num_devices)
    if len(there) < 2 or found.gain >= _FAR * reachable:
        return
    yield Finding(
        "unbalanced",
        f"device {busiest} does {found.work_by_device[busiest] / found.work:.0%} of the work with "
        f"{', '.join(part.name for part in there)}: at most {found.gain:.1f}x one device, where up to "
        f"{reachable:.1f}x could be reached",
        "outlay choose RECIPE --target T proposes a balanced placement",
        int(sum(part.bytes_accessed for part in there)),
    )


def _exchange(found: PlacedExplanation) -> Iterator[Finding]:
    """What is exchanged takes longer than what is computed."""
    spent = found.exchange_seconds
    busiest = max(found.work_by_device.values())
    if spent is None or spent <= busiest:
        return
    yield Finding(
        "exchange-above-work",
        f"a device waits {format_seconds(spent)} a step for {rate(found.bytes_per_step)} in {len(found.sent)} "
        f"transfer(s), and computes {format_seconds(busiest)} at most: the estimate sees no gain in this placement",
        "one device; larger parts on fewer devices; or connections with a longer delay, so that several steps run "
        "between two exchanges",
        int(found.bytes_per_step),
    )


def _idle(found: PlacedExplanation) -> Iterator[Finding]:
    idle = [device for device, work in found.work_by_device.items() if not work]
    if not idle:
        return
    names = ", ".join(map(str, idle))
    yield Finding(
        "idle-device",
        f"device{'s' if len(idle) > 1 else ''} {names}: nothing to do",
        f"a mesh of {found.mesh.num_devices - len(idle)}, or a part for each: outlay.by_module names positions",
        0,
    )
