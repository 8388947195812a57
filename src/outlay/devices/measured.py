"""What `outlay calibrate` measured on a machine, as a table of a file of targets. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CollectiveCost:
    """A linear fit of the measured times of one kind of collective: a call takes `seconds + payload / speed`.

    Attributes:
        seconds_per_call: the time of a call without its payload.
        bytes_per_second: the speed at which the payload of one device passes.
    """

    seconds_per_call: float
    bytes_per_second: float

    def seconds(self, payload_bytes: float) -> float:
        """Return the time of a call."""
        return self.seconds_per_call + payload_bytes / self.bytes_per_second


@dataclass(frozen=True)
class Measured:
    """What was measured with all devices busy at once, besides the speeds that have keys of their own.

    Attributes:
        num_devices: how many were busy.
        seconds_per_step: the time of a step that computes nothing.
        seconds_per_operation: the time of one more small operation in a step.
        across_rows: bytes/s of reading down a column, by the bytes from one entry to the next.
        collectives: cost by kind, then by the number of devices that exchange with one another.
    """

    num_devices: int
    seconds_per_step: float
    seconds_per_operation: float
    across_rows: Mapping[int, float] = field(hash=False)
    collectives: Mapping[str, Mapping[int, CollectiveCost]] = field(hash=False)

    def collective_seconds(self, kind: str, payload_bytes: float, group_size: int) -> float | None:
        """Return the time of one run, interpolated between the group sizes that were measured.

        Returns:
            Seconds, or None for a kind that was not measured.
        """
        sizes = self.collectives.get(kind, {})
        return _between({n: cost.seconds(payload_bytes) for n, cost in sizes.items()}, group_size) if sizes else None

    def seconds_across_rows(self, num_bytes: float, pitch: int) -> float:
        """Return the time to read bytes down a column, on one device."""
        return num_bytes * _between({known: 1 / speed for known, speed in self.across_rows.items()}, pitch)

    def to_table(self) -> dict[str, Any]:
        """Return the table `measured` of a file of targets."""
        return {
            "num_devices": self.num_devices,
            "seconds_per_step": self.seconds_per_step,
            "seconds_per_operation": self.seconds_per_operation,
            "across_rows": {str(pitch): speed for pitch, speed in self.across_rows.items()},
            "collectives": {
                kind: {str(size): [cost.seconds_per_call, cost.bytes_per_second] for size, cost in sizes.items()}
                for kind, sizes in self.collectives.items()
            },
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Measured:
        """Read what `to_table` returned; `is_measured` says whether it can be read."""
        collectives = {
            kind: {int(size): CollectiveCost(*map(float, cost)) for size, cost in sizes.items()}
            for kind, sizes in table["collectives"].items()
        }
        return cls(
            num_devices=int(table["num_devices"]),
            seconds_per_step=float(table["seconds_per_step"]),
            seconds_per_operation=float(table["seconds_per_operation"]),
            across_rows={int(pitch): float(speed) for pitch, speed in table["across_rows"].items()},
            collectives=collectives,
        )


def _between(values: Mapping[int, float], at: int) -> float:
    """Interpolate linearly over the logarithm; beyond the ends, return the value there."""
    below = max((known for known in values if known <= at), default=min(values))
    above = min((known for known in values if known >= at), default=max(values))
    if below == above:
        return values[below]
    part = math.log(at / below) / math.log(above / below)
    return values[below] + part * (values[above] - values[below])


def is_measured(table: Any) -> bool:
    """Return whether a value is a table that `Measured.to_table` could have returned."""
    try:
        read = Measured.from_table(table)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    costs = [cost for sizes in read.collectives.values() for cost in sizes.values()]
    sizes = [size for sizes in read.collectives.values() for size in sizes]
    return (
        read.num_devices > 0
        and min(read.seconds_per_step, read.seconds_per_operation) >= 0
        and bool(read.across_rows)
        and min(*read.across_rows, *read.across_rows.values()) > 0
        and all(size > 1 for size in sizes)
        and all(cost.seconds_per_call >= 0 and cost.bytes_per_second > 0 for cost in costs)
    )
