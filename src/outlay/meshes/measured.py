"""What `outlay calibrate` measured of a machine, as it stands in a table of targets. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CollectiveCost:
    """The line through the measured times of one kind of collective: a call takes `seconds + payload / speed`.

    Attributes:
        seconds_per_call: what a call takes however little it moves.
        bytes_per_second: how fast the payload of one device passes, once it is large.
    """

    seconds_per_call: float
    bytes_per_second: float

    def seconds(self, payload_bytes: float) -> float:
        """The time of a call."""
        return self.seconds_per_call + payload_bytes / self.bytes_per_second


@dataclass(frozen=True)
class Measured:
    """What was measured with all devices busy at once, beside the speeds that have their own keys.

    Attributes:
        num_devices: how many were busy.
        seconds_per_step: what a step takes that does nothing.
        seconds_per_operation: what one more small operation of a step takes.
        transposed_bandwidth: bytes/s of what an operation reads across its rows.
        collectives: cost by kind, then by the number of devices that exchange with one another.
    """

    num_devices: int
    seconds_per_step: float
    seconds_per_operation: float
    transposed_bandwidth: float
    collectives: Mapping[str, Mapping[int, CollectiveCost]] = field(hash=False)

    def collective_seconds(self, kind: str, payload_bytes: float, group_size: int) -> float | None:
        """The time of one run; between the group sizes that were measured, on the straight line over their logarithm.

        Returns:
            Seconds, or None for a kind that was not measured.
        """
        sizes = self.collectives.get(kind, {})
        if not sizes:
            return None
        below = max((size for size in sizes if size <= group_size), default=min(sizes))
        above = min((size for size in sizes if size >= group_size), default=max(sizes))
        times = [sizes[size].seconds(payload_bytes) for size in (below, above)]
        if below == above:
            return times[0]
        part = math.log(group_size / below) / math.log(above / below)
        return times[0] + part * (times[1] - times[0])

    def to_table(self) -> dict[str, Any]:
        """As the table `measured` of a file of targets."""
        return {
            "num_devices": self.num_devices,
            "seconds_per_step": self.seconds_per_step,
            "seconds_per_operation": self.seconds_per_operation,
            "transposed_bandwidth": self.transposed_bandwidth,
            "collectives": {
                kind: {str(size): [cost.seconds_per_call, cost.bytes_per_second] for size, cost in sizes.items()}
                for kind, sizes in self.collectives.items()
            },
        }

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Measured:
        """Read back what `to_table` gave; `is_measured` says whether it can be."""
        collectives = {
            kind: {int(size): CollectiveCost(*map(float, cost)) for size, cost in sizes.items()}
            for kind, sizes in table["collectives"].items()
        }
        keys = ("seconds_per_step", "seconds_per_operation", "transposed_bandwidth")
        numbers = (float(table[key]) for key in keys)
        return cls(int(table["num_devices"]), *numbers, collectives)


def is_measured(table: Any) -> bool:
    """Whether a value is a table that `Measured.to_table` could have given."""
    try:
        read = Measured.from_table(table)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    costs = [cost for sizes in read.collectives.values() for cost in sizes.values()]
    sizes = [size for sizes in read.collectives.values() for size in sizes]
    return (
        read.num_devices > 0
        and min(read.seconds_per_step, read.seconds_per_operation) >= 0
        and read.transposed_bandwidth > 0
        and all(size > 1 for size in sizes)
        and all(cost.seconds_per_call >= 0 and cost.bytes_per_second > 0 for cost in costs)
    )
