"""The estimated time of a step, which prints itself: the range, its parts, and the assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from outlay.core.one_line import OneLine
from outlay.core.quantities import counted, format_bytes, format_flops, format_range, format_seconds
from outlay.render.page import Chip, Column, Line, Notes, Page, Section, Segment, Table, colour_of
from outlay.render.pictures import Stack
from outlay.render.report import Report

PARTS = ("products", "memory", "kernels", "communication", "host", "overhead")
"""The parts of a step's time."""
WAITING = ("communication", "host", "overhead")
"""The parts that depend on more than the device: other traffic, hosts, the slowest of many. Their range is wider."""
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
        """The geometric mean of the bounds, or half the upper bound if the lower one is 0.

        >>> Range(1.0, 4.0).middle, Range(0.0, 4.0).middle
        (2.0, 2.0)
        """
        return (self.low * self.high) ** 0.5 if self.low > 0 else self.high / 2


@dataclass(frozen=True)
class Transfer(OneLine):
    """All collectives of one kind over the same mesh axes.

    Attributes:
        kind: the kind, such as `all-reduce`.
        axes: the mesh axes; empty if unknown.
        group_size: the number of devices in a group.
        num_runs: runs per step.
        payload_bytes: bytes gathered, reduced or exchanged per device and step.
        seconds: seconds per step.
        exposed: the part of `seconds` for which the device waits.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    num_runs: int
    payload_bytes: int
    seconds: float
    exposed: float


def segments_of_time(parts: Mapping[str, float]) -> list[Segment]:
    """Return the parts of a step's time as sections of a bar; each part has the same colour in every bar."""
    total = sum(parts.values())
    return [
        Segment(name, seconds / total, colour_of(number), format_seconds(seconds))
        for number, (name, seconds) in enumerate(parts.items())
        if seconds
    ]


@dataclass(frozen=True)
class Estimate(Report):
    """The estimated time of a step on a target; returned by `outlay.estimate`.

    `str()` gives text, a notebook shows a page. All seconds are those of one device, since all devices do the same.

    Attributes:
        target: the hardware, as text.
        num_devices: the number of devices.
        measured: whether `outlay calibrate` measured the speeds; otherwise they come from a data sheet.
        seconds: the time of a step, from the schedule of the compiled program.
        seconds_low: the lower end of the range.
        seconds_high: the upper end of the range.
        parts: the parts of `seconds`, which sum to it: `products` is bound by arithmetic, `memory` by memory bandwidth,
            `kernels` are custom calls, `communication` and `host` are exposed waiting, `overhead` is launching the step
            and its operations.
        hidden: communication that overlaps with computation; not part of `seconds`.
        flops: FLOPs of matrix products, convolutions and kernels on one device.
        bytes_accessed: bytes that one device reads and writes in its memory.
        transfers: the collectives, most expensive first.
        assumptions: all assumptions, as sentences.
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
        """The largest part."""
        return max(self.parts, key=lambda name: self.parts[name])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**super().to_dict(), "dominated_by": self.dominated_by}

    _text_width = 160

    def _page(self) -> Page:
        return self.laid_out()

    def laid_out(self) -> Page:
        """Lay it out, for a page of its own or as a part of another."""
        span = format_range(self.seconds_low, self.seconds_high)
        work = (
            f"each of {counted(self.num_devices, 'device')}: {format_flops(self.flops)}, "
            f"{format_bytes(self.bytes_accessed)} of memory read and written"
        )
        blocks = [Line(work, medium="text"), Section("parts of a step", [self._parts()])]
        if self.transfers:
            blocks.append(Section("collectives", [self._collectives()], "at the full speed of the links"))
        return Page(
            f"{format_seconds(self.seconds)} a step ({span}) on {self.target}, mostly {self.dominated_by}",
            [*blocks, Section("assumptions", [Notes(self.assumptions, "")])],
            chips=[
                Chip(self.target),
                Chip(work),
                Chip("measured speeds") if self.measured else Chip("speeds from data sheets", "warning"),
            ],
            footer="All figures are per device and step.",
        )

    def _parts(self) -> Stack:
        dominates = self.dominated_by
        parts = segments_of_time(self.parts)
        return Stack([replace(one, remark="dominates") if one.name == dominates else one for one in parts])

    def _collectives(self) -> Table:
        columns = [
            (Column("kind"), lambda transfer: transfer.kind),
            (Column("axes"), lambda transfer: ", ".join(transfer.axes)),
            (Column("devices", "number"), lambda transfer: str(transfer.group_size)),
            (Column("runs", "number"), lambda transfer: str(transfer.num_runs)),
            (Column("payload", "number"), lambda transfer: format_bytes(transfer.payload_bytes)),
            (Column("time", "number", is_key=True), lambda transfer: format_seconds(transfer.seconds)),
            (Column("waited for", "number"), lambda transfer: format_seconds(transfer.exposed)),
        ]
        num_more = len(self.transfers) - _MAX_ROWS
        more = counted(num_more, "more kind of collectives", "more kinds of collectives")
        return Table.of(self.transfers, columns, limit=_MAX_ROWS, rest=f"and {more}")
