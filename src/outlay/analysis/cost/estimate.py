"""What was estimated of a program, as facts that print themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jinja2
from rich.console import Group
from rich.text import Text

from outlay.core.quantities import counted, format_bytes, format_flops, format_seconds
from outlay.core.table import table, to_text

PARTS = ("products", "memory", "kernels", "communication", "host", "overhead")
"""What a step's time is made of."""
COLUMNS = ("collectives", "axes", "devices", "runs", "payload", "time", "waited for")
MAX_ROWS = 12


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


def lines(estimate: Estimate) -> Group:
    """An estimate as rich renderables."""
    parts = [
        (name, format_seconds(part), "dominates" if name == estimate.dominated_by else "")
        for name, part in estimate.parts.items()
        if part
    ]
    shown: list[Any] = [
        Text(headline(estimate), style="bold"),
        Text(what(estimate)),
        Text(),
        table(("", "a step", ""), parts, right=("a step",)),
    ]
    if estimate.transfers:
        shown += [Text(), table(COLUMNS, transfer_rows(estimate)[:MAX_ROWS], right=COLUMNS[2:])]
    if len(estimate.transfers) > MAX_ROWS:
        shown.append(Text(f"and {len(estimate.transfers) - MAX_ROWS} more kinds of collectives"))
    shown += [Text(), Text("assumed", style="bold"), *(Text(f"- {words}") for words in estimate.assumptions)]
    return Group(*shown)


def page(estimate: Estimate) -> str:
    """An estimate as a complete page."""
    loader = jinja2.PackageLoader("outlay.report")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    shares = [
        (name, format_seconds(part), 100 * part / estimate.seconds, name == estimate.dominated_by)
        for name, part in estimate.parts.items()
        if part
    ]
    template = environment.get_template("estimate.html.j2")
    return template.render(
        headline=headline(estimate),
        chips=[estimate.target, what(estimate)],
        measured=estimate.measured,
        parts=shares,
        columns=COLUMNS,
        rows=transfer_rows(estimate),
        assumptions=estimate.assumptions,
    )


def headline(estimate: Estimate) -> str:
    """The answer in a sentence."""
    span = format_range(Range(estimate.seconds_low, estimate.seconds_high))
    return f"{format_seconds(estimate.seconds)} a step ({span}) on {estimate.target}, mostly {estimate.dominated_by}"


def what(estimate: Estimate) -> str:
    """The work of a device."""
    memory = format_bytes(estimate.bytes_accessed)
    devices = f"{counted(estimate.num_devices, 'device')}"
    return f"each of {devices}: {format_flops(estimate.flops)}, {memory} of memory read and written"


def transfer_rows(estimate: Estimate) -> list[tuple[str, ...]]:
    """The cells of each line of the table of collectives."""
    return [
        (
            one.kind,
            ", ".join(one.axes),
            str(one.group_size),
            str(one.num_runs),
            format_bytes(one.payload_bytes),
            format_seconds(one.seconds),
            format_seconds(one.exposed),
        )
        for one in estimate.transfers
    ]


def format_range(span: Range) -> str:
    """A range of times for people.

    >>> format_range(Range(0.012, 0.031)), format_range(Range(0.5e-3, 0.012)), format_range(Range(0.002, 0.002))
    ('12 to 31 ms', '500 µs to 12 ms', '2 ms')
    """
    low, high = format_seconds(span.low), format_seconds(span.high)
    if low == high:
        return low
    (number, unit), (_, other) = low.split(), high.split()
    return f"{number} to {high}" if unit == other else f"{low} to {high}"
