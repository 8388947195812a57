"""How long a step would take, as facts that print themselves: the range, what it is made of, and what was assumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlay.core.quantities import counted, format_bytes, format_flops, format_range, format_seconds
from outlay.render.page import Chip, Column, Line, Notes, Page, Row, Section, Segment, Table, colour_of
from outlay.render.pictures import Stack
from outlay.render.report import Report

PARTS = ("products", "memory", "kernels", "communication", "host", "overhead")
"""What a step's time is made of."""
_MAX_ROWS = 12


@dataclass(frozen=True)
class Range:
    """A lower and an upper bound, in seconds or as a share."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.high + other.high)

    @property
    def middle(self) -> float:
        """As far from one bound as from the other, as a ratio; where that cannot be, from nothing, halfway.

        >>> Range(1.0, 4.0).middle, Range(0.0, 4.0).middle
        (2.0, 2.0)
        """
        return (self.low * self.high) ** 0.5 if self.low > 0 else self.high / 2


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
class Estimate(Report):
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

    _text_width = 160

    def _page(self) -> Page:
        span = format_range(self.seconds_low, self.seconds_high)
        work = (
            f"each of {counted(self.num_devices, 'device')}: {format_flops(self.flops)}, "
            f"{format_bytes(self.bytes_accessed)} of memory read and written"
        )
        blocks = [Line(work, medium="text"), Section("what a step is made of", [self._parts()])]
        if self.transfers:
            blocks.append(Section("collectives", [self._collectives()], "at full speed of the links"))
        return Page(
            f"{format_seconds(self.seconds)} a step ({span}) on {self.target}, mostly {self.dominated_by}",
            [*blocks, Section("assumed", [Notes(self.assumptions, "")])],
            chips=[
                Chip(self.target),
                Chip(work),
                Chip("measured speeds") if self.measured else Chip("speeds from data sheets", "warning"),
            ],
            footer="All is of one device, in one step.",
        )

    def _parts(self) -> Stack:
        parts = {name: seconds for name, seconds in self.parts.items() if seconds}
        return Stack(
            [
                Segment(
                    name,
                    seconds / self.seconds,
                    colour_of(number),
                    format_seconds(seconds),
                    "dominates" if name == self.dominated_by else "",
                )
                for number, (name, seconds) in enumerate(parts.items())
            ]
        )

    def _collectives(self) -> Table:
        columns = [Column("kind"), Column("axes")]
        columns += [Column(name, "number") for name in ("devices", "runs", "payload", "time", "waited for")]
        rows = [
            Row(
                [
                    transfer.kind,
                    ", ".join(transfer.axes),
                    str(transfer.group_size),
                    str(transfer.num_runs),
                    format_bytes(transfer.payload_bytes),
                    format_seconds(transfer.seconds),
                    format_seconds(transfer.exposed),
                ]
            )
            for transfer in self.transfers
        ]
        more = counted(len(rows) - _MAX_ROWS, "more kind of collectives", "more kinds of collectives")
        return Table(columns, rows, limit=_MAX_ROWS, rest=f"and {more}")
