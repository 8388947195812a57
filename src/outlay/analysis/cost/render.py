"""An estimate as text and as a page: the range, what it is made of, and what was assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jinja2
from rich.console import Group
from rich.text import Text

from outlay.analysis.cost.speeds import Range
from outlay.core.quantities import counted, format_bytes, format_flops, format_seconds
from outlay.core.table import table

if TYPE_CHECKING:
    from outlay.analysis.cost.estimate import Estimate

COLUMNS = ("collectives", "axes", "devices", "runs", "payload", "time", "waited for")
MAX_ROWS = 12


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
