"""Everything that the price of a schedule is made of, as a few kilobytes: with it a page prices the step anew.

`outlay/render/templates/price.js` reads it, and is `price` and `lanes` once more, in the language of pages: with no
setting changed it gives the seconds of `price`, and with one changed those of a target that is changed alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlay.analysis.cost.constants import Constants, constants_of, product_speed
from outlay.analysis.cost.estimate import WAITING
from outlay.analysis.cost.links import NETWORK_SHARE, Reach, crowding, measured_seconds, reaches
from outlay.analysis.cost.price import MOST_ROUNDS, moving_seconds
from outlay.analysis.cost.schedule import Event, Schedule
from outlay.devices.target import Target

_CALLS = ("loop", "branch", "call")


def price_table(
    schedule: Schedule, target: Target, *, axis: str = "", origins: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what the price of a schedule is made of, as JSON-ready rows.

    Args:
        schedule: the schedule of a device.
        target: the hardware.
        axis: the mesh axis along which more hosts (TPU slices) would be added; with an empty one, only collectives of
            all devices are those of more hosts then.
        origins: what instructions are, in words, by name; the name itself stands for others.

    >>> from outlay.analysis.cost.schedule import Event
    >>> step = Schedule("", 1, "main", {"main": (Event("work", "dot", flops=2e9, dtype="bfloat16"),)}, (), ())
    >>> table = price_table(step, Target.parse("h100:1x1"), origins={"dot": "a product"})
    >>> table["blocks"], table["labels"], table["origins"]
    ([[['work', 0, 2000000000.0, 0, 0]]], [['dot', 0]], ['a product'])
    """
    hardware, known = target.hardware, constants_of(target.hardware)
    rows = _Rows(schedule, target, dict(origins or {}))
    blocks = [[rows.event(event) for event in events] for events in schedule.blocks.values()]
    # Of a slice of 256 devices many groups reach equally far, and so do the groups of many collectives.
    distances = [reaches(groups, target, schedule.locations or None) for groups in schedule.groups]
    exchanges = [
        [one.kind, one.payload_bytes, one.groups, int(_grows(schedule, number, axis))]
        for number, one in enumerate(schedule.exchanges)
    ]
    return {
        "target": str(target),
        "kind": hardware.kind,
        "island": target.island,
        "islands": target.num_islands,
        "devices": target.num_devices,
        "axis": axis,
        "hardware": {
            "memory": hardware.memory_bandwidth,
            "links": hardware.intra_host_link_bandwidth,
            "network": hardware.scale_out_bandwidth,
            "networkShare": NETWORK_SHARE,
            "linkLatency": hardware.link_latency,
            "linkFloor": hardware.link_floor,
            "networkLatency": hardware.scale_out_latency,
            "networkFloor": hardware.scale_out_floor,
            "host": hardware.host_link_bandwidth,
        },
        "constants": _constants(known, target),
        "ranges": {"own": known.spread, "waiting": known.spread_waiting, "waits": WAITING, "rounds": MOST_ROUNDS},
        "speeds": [product_speed(hardware, dtype)[0] * hardware.clock_share for dtype in rows.dtypes],
        "dtypes": rows.dtypes,
        "reaches": [[_reach(each) for each in those] for those in distances],
        "exchanges": [[*row, *_measured(schedule, number, target)] for number, row in enumerate(exchanges)],
        "entry": list(schedule.blocks).index(schedule.entry) if schedule.entry in schedule.blocks else -1,
        "blocks": blocks,
        "labels": rows.labels,
        "origins": list(rows.origins),
    }


def _constants(known: Constants, target: Target) -> dict[str, float]:
    names = ("products", "small_product", "small_power", "kernels", "memory", "operation", "step", "slowest")
    return {name: getattr(known, name) for name in names} | {"crowd": crowding(target)}


def _reach(reach: Reach) -> list[float]:
    inside = reach.inside
    return [reach.size, reach.num_islands, inside.num, inside.bandwidth, inside.steps, inside.sums, inside.detour]


def _grows(schedule: Schedule, number: int, axis: str) -> bool:
    """Return whether a collective is one of more devices if there are more hosts."""
    one = schedule.exchanges[number]
    if axis and one.axes:
        return axis in one.axes
    return max(map(len, schedule.groups[one.groups]), default=0) == schedule.num_devices > 1


def _measured(schedule: Schedule, number: int, target: Target) -> list[float]:
    one, locations = schedule.exchanges[number], schedule.locations or None
    groups = schedule.groups[one.groups]
    seconds = measured_seconds(one.kind, one.payload_bytes, groups, target, locations=locations)
    return [] if seconds is None else [seconds]


class _Rows:
    """Rows of events, with each name, origin and dtype once."""

    def __init__(self, schedule: Schedule, target: Target, words: Mapping[str, str]) -> None:
        self._numbers = {name: number for number, name in enumerate(schedule.blocks)}
        self._hardware, self._words = target.hardware, words
        self._named: dict[str, int] = {}
        self.labels: list[list[Any]] = []
        self.origins: dict[str, int] = {}
        self.dtypes: list[str] = []

    def event(self, event: Event) -> list[Any]:
        """Return the row of an event: its kind, its label, and what its kind needs."""
        if event.kind in _CALLS:
            calls = [self._numbers.get(name, -1) for name in event.calls]
            row = [event.kind, self._label(event.name), calls, event.runs]
            return row if event.is_counted else [*row, 1]
        if event.kind != "work":
            return [event.kind, self._label(event.name), event.number, event.num_bytes]
        moved = event.num_bytes
        if self._hardware.measured is not None:  # reads across rows count as so many more bytes
            moved = moving_seconds(event, self._hardware) * self._hardware.memory_bandwidth
        row = [event.kind, self._label(event.name), event.flops, self._speed(event), moved]
        return [*row, 1] if event.kernel else row

    def _label(self, name: str) -> int:
        if name not in self._named:
            self._named[name] = len(self.labels)
            words = self._words.get(name, name)
            self.labels.append([name, self.origins.setdefault(words, len(self.origins))])
        return self._named[name]

    def _speed(self, event: Event) -> int:
        dtype = event.dtype or "bfloat16"
        if event.flops and dtype not in self.dtypes:
            self.dtypes.append(dtype)
        return self.dtypes.index(dtype) if event.flops else 0
