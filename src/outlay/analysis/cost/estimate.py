"""What was estimated of a program, as facts that print themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group

from outlay.analysis.cost.render import lines, page
from outlay.core.table import to_text

PARTS = ("products", "memory", "kernels", "communication", "host", "overhead")
"""What a step's time is made of."""


@dataclass(frozen=True)
class Transfer:
    """All collectives of one kind over one set of devices.

    Attributes:
        kind: such as `all-reduce`.
        axes: the mesh axes they run over; empty where that is not known.
        group_size: devices that exchange with one another.
        num_runs: runs a step.
        payload_bytes: what they gather, reduce or exchange on one device in a step.
        seconds: a step.
        exposed: for how much of that the device waits.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    num_runs: int
    payload_bytes: int
    seconds: float
    exposed: float


@dataclass(frozen=True)
class Estimate:
    """How long a step would take on a target; made by `outlay.estimate`.

    `str()` gives text, a notebook shows a page. All seconds are one device's, which is the step's: all do the same.

    Attributes:
        target: the hardware, as text.
        num_devices: how many of them.
        measured: whether the speeds were measured by `outlay calibrate`; if not they are a data sheet's.
        seconds: of a step, by the schedule of the compiled program.
        seconds_low: what it may be less, by all that a schedule does not say.
        seconds_high: what it may be more.
        parts: what `seconds` is made of, and adds up to: `products` that the arithmetic bounds, `memory` for what the
            memory's bandwidth bounds, `kernels` for custom calls, `communication` and `host` for what the device waits
            for, `overhead` for starting the step and its operations.
        hidden: communication that runs behind computation, and is no part of the time.
        flops: of matrix products, convolutions and kernels, on one device.
        bytes_accessed: what one device reads and writes in its memory.
        transfers: the collectives, dearest first.
        assumptions: everything that was assumed, in words.
    """

    target: str
    num_devices: int
    measured: bool
    seconds: float
    seconds_low: float
    seconds_high: float
    parts: Mapping[str, float] = field(hash=False)
    hidden: float
    flops: float
    bytes_accessed: float
    transfers: tuple[Transfer, ...]
    assumptions: tuple[str, ...]

    @property
    def dominated_by(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=lambda name: self.parts[name])

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {**dataclasses.asdict(self), "dominated_by": self.dominated_by}

    def to_html(self) -> str:
        """As a complete page in one file, which works offline."""
        return page(self)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __str__(self) -> str:
        return to_text(self)

    def __rich__(self) -> Group:
        return lines(self)
