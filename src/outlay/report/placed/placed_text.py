"""The explanation of a placed program as text: the bound, the parts, what is sent, the cache, what to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.padding import Padding
from rich.text import Text

from outlay.analysis.cost.estimate import format_range
from outlay.core.quantities import counted, format_bytes, format_flops, format_seconds
from outlay.core.table import table
from outlay.report.placed.placed_explanation import PartFacts, PlacedExplanation
from outlay.report.placed.placed_words import bound, cost, devices, headline, rate

MAX_ROWS = 30


def render_parts(found: PlacedExplanation, width: int) -> Iterator[Any]:
    """The explanation as rich renderables, for a console so many characters wide."""
    yield Text(headline(found), style="bold")
    yield Text(bound(found))
    peak = "" if found.peak is None else f", the fullest needs {format_bytes(found.peak)}"
    busiest = max(found.work_by_device.values())
    yield Text(f"work {cost(found, found.work)} a step, the busiest device {cost(found, busiest)}{peak}; estimated")
    yield Text()
    yield from _parts(found)
    yield Text()
    yield from _sent(found)
    yield Text()
    yield from _cached(found)
    if found.findings:
        yield Text()
        yield Text(f"findings: {len(found.findings)}", style="bold")
    for number, finding in enumerate(found.findings, 1):
        yield Padding(Text(f"{number}. {finding.kind}: {finding.text}"), (0, 0, 0, 1))
        yield Padding(Text(f"fix: {finding.fix}", style="green"), (0, 0, 0, 4))
    yield Text()
    yield from (Text(f"incomplete: {what}", style="yellow") for what in found.incomplete)
    yield from (Text(f"note: {note}", style="dim") for note in found.notes)


def _parts(found: PlacedExplanation) -> Iterator[Any]:
    columns = ("part", "device", "state", "computes", "memory traffic", "estimate", "of the work", "needs")
    rows = [_part(part) for part in found.parts]
    yield table(columns, rows, right=columns[2:])


def _part(part: PartFacts) -> tuple[str, ...]:
    return (
        part.name,
        devices(part.devices),
        format_bytes(part.num_bytes),
        format_flops(part.flops),
        format_bytes(part.bytes_accessed),
        format_range(part.seconds) if part.seconds else "",
        f"{part.share:.1%}",
        "" if part.peak is None else format_bytes(part.peak),
    )


def _sent(found: PlacedExplanation) -> Iterator[Any]:
    if not found.sent:
        yield Text("sent: nothing, all parts are in one place", style="bold")
        return
    often = "every step" if found.num_steps_at_once == 1 else f"every {found.num_steps_at_once} steps"
    waits = found.exchange_seconds
    spent = "" if waits is None else f", a device waits up to {format_seconds(waits)} for it"
    yield Text(
        f"sent: {rate(found.bytes_per_step)} a step in {counted(len(found.sent), 'transfer')} {often}{spent}",
        style="bold",
    )
    rows = [
        (
            f"{one.part}:{one.port}",
            devices(one.origin),
            "one another" if one.is_within else devices(one.target),
            rate(one.bytes_in_all),
            "" if one.seconds is None else format_seconds(one.seconds),
            ", ".join(one.readers),
        )
        for one in found.sent
    ]
    columns = ("output", "from", "to", "a step", "time", "read by")
    yield table(columns, rows[:MAX_ROWS], right=("a step", "time"))
    if len(rows) > MAX_ROWS:
        rest = sum(one.bytes_in_all for one in found.sent[MAX_ROWS:])
        yield Text(f"and {len(rows) - MAX_ROWS} more transfers, together {rate(rest)} a step", style="dim")


def _cached(found: PlacedExplanation) -> Iterator[Any]:
    yield Text("cache: what each part put out in the step before", style="bold")
    rows = [
        (
            one.path,
            f"{one.dtype}{list(one.shape)}",
            format_bytes(one.num_bytes),
            devices(one.owners),
            devices(one.sent_to) or "none",
        )
        for one in found.cached
    ]
    yield table(("path", "array", "bytes", "lives on", "copied to"), rows, right=("bytes",))
