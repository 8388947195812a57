"""What was estimated of a program, as facts that print themselves."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from rich.console import Group

from outlay.core.table import to_text
from outlay.report.estimate.render import lines, page
from outlay.report.estimate.speeds import Range


@dataclass(frozen=True)
class Transfer:
    """All collectives of one kind over one set of devices.

    Attributes:
        kind: such as `all-reduce`.
        axes: the mesh axes they run over; empty where that is not known.
        group_size: devices that exchange with one another.
        num_runs: runs a step.
        payload_bytes: what they gather, reduce or exchange on one device in a step.
        seconds: a step, at full speed of the links.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    num_runs: int
    payload_bytes: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """How long a step would take on a target; made by `outlay.estimate`.

    `str()` gives text, a notebook shows a page. All seconds are one device's, which is the step's: all do the same.

    Attributes:
        target: the hardware, as text.
        num_devices: how many of them.
        measured: whether the speeds were measured by `outlay calibrate`; if not they are a data sheet's.
        seconds_low: of a step, if all that can overlap does and the hardware does well.
        seconds_high: of a step, if nothing overlaps and it does poorly.
        compute: of matrix products and convolutions.
        memory: of moving to and from memory what other operations work on, and products where that takes longer.
        communication: of collectives.
        overhead: of starting the step and its operations.
        flops: of matrix products and convolutions, on one device.
        bytes_accessed: what one device reads and writes in its memory.
        transfers: the collectives, dearest first.
        assumptions: everything that was assumed, in words.
    """

    target: str
    num_devices: int
    measured: bool
    seconds_low: float
    seconds_high: float
    compute: Range
    memory: Range
    communication: Range
    overhead: Range
    flops: float
    bytes_accessed: float
    transfers: tuple[Transfer, ...]
    assumptions: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """The middle of the range, to rank by: as far from one end as from the other, as a ratio."""
        return Range(self.seconds_low, self.seconds_high).middle

    @property
    def parts(self) -> dict[str, Range]:
        """What the time is made of, by name."""
        return {
            "compute": self.compute,
            "memory": self.memory,
            "communication": self.communication,
            "overhead": self.overhead,
        }

    @property
    def dominated_by(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=lambda name: self.parts[name].middle)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {**dataclasses.asdict(self), "seconds": self.seconds, "dominated_by": self.dominated_by}

    def to_html(self) -> str:
        """As a complete page in one file, which works offline."""
        return page(self)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __str__(self) -> str:
        return to_text(self)

    def __rich__(self) -> Group:
        return lines(self)
