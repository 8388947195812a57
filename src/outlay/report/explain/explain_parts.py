"""The report on a program with placed parts: what each costs, what they send, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlay.analysis.parts.part_facts import PartFacts, PlacedExplanation
from outlay.core.quantities import counted, format_bytes, format_flops, format_range, format_seconds
from outlay.render.page import (
    Advice,
    Advices,
    Block,
    Cell,
    Chip,
    Column,
    Line,
    Notes,
    Page,
    Section,
    Segment,
    Stat,
    Stats,
    Table,
    colour_of,
    with_bars,
)
from outlay.render.pictures import Bar, Bars
from outlay.report.explain.explain_tables import device_chips, devices_in_words

_MAX_ROWS = 30


def placed_page(facts: PlacedExplanation) -> Page:
    """Build the report from facts."""
    return Page(
        title=f"{facts.name}: what each part costs where it is placed",
        headline=f"{counted(len(facts.parts), 'part')} on {devices_in_words(facts.mesh, facts.target)}: {facts.name}",
        chips=[
            *device_chips(facts.mesh, facts.target, "Simulated CPU devices: all share this machine's cores."),
            Chip("estimated, nothing was run"),
        ],
        blocks=[
            Line(f"{facts.bound}; this one at most {facts.gain:.1f}x", medium="text"),
            _stats(facts),
            Notes(facts.incomplete, "incomplete", is_warning=True),
            _work(facts),
            *_findings(facts),
            _parts(facts),
            _sent(facts),
            _cached(facts),
            Notes(facts.notes),
        ],
        footer="All bytes, operations and times are per step. Compiled and explained in "
        f"{format_seconds(facts.seconds)}.",
    )


def _stats(facts: PlacedExplanation) -> Stats:
    waits = facts.exchange_seconds
    transfers = f"in {counted(len(facts.sent), 'transfer')}" + (f", up to {format_seconds(waits)}" if waits else "")
    busiest = _cost(facts, max(facts.work_by_device.values()))
    return Stats(
        [
            Stat("Best possible gain", f"{facts.best_gain:.1f}x", "of placing whole parts: sum / max"),
            Stat("This placement", f"{facts.gain:.1f}x", "at most, without any exchange"),
            Stat("Work", _cost(facts, facts.work), f"a step; busiest device {busiest}, estimated"),
            Stat("Sent in a step", format_bytes(facts.bytes_per_step), transfers),
        ]
    )


def _work(facts: PlacedExplanation) -> Section:
    """Draw each device as a bar of its parts, the busiest the longest."""
    most = max(facts.work_by_device.values()) or 1.0
    bars = [
        Bar(
            f"device {device}",
            _cost(facts, work) if work else "nothing to do",
            [
                Segment(part.name, part.cost / most, colour_of(number), _cost(facts, part.cost))
                for number, part in enumerate(facts.parts)
                if device in part.devices
            ],
        )
        for device, work in facts.work_by_device.items()
    ]
    peak = "" if facts.peak is None else f", the fullest needs {format_bytes(facts.peak)}"
    busiest = _cost(facts, max(facts.work_by_device.values()))
    return Section(
        "work of each device in a step",
        [
            Line(f"{_cost(facts, facts.work)} in all, the busiest device {busiest}{peak}", medium="text"),
            Bars("", bars, with_names=True, limit=8),
            Line(f"{facts.bound}; this one at most {facts.gain:.1f}x.", "dim", medium="html"),
        ],
        remark="estimated; the busiest sets the pace",
    )


def _findings(facts: PlacedExplanation) -> list[Block]:
    advices = [Advice(finding.kind, finding.text, finding.fix) for finding in facts.findings]
    return [Section("findings", [Advices(advices)], str(len(advices)))] if advices else []


def _parts(facts: PlacedExplanation) -> Section:
    colours = {part.name: colour_of(number) for number, part in enumerate(facts.parts)}
    columns = [
        (Column("part"), lambda part: Cell(part.name, colour=colours[part.name])),
        (Column("device"), lambda part: _listed(part.devices)),
        (Column("state", "number"), lambda part: format_bytes(part.num_bytes)),
        (Column("computes", "number"), lambda part: format_flops(part.flops)),
        (Column("memory traffic", "number"), lambda part: format_bytes(part.bytes_accessed)),
        (Column("estimate", "number"), _estimated),
        (Column("of the work", "number"), with_bars(facts.parts, lambda part: part.share, "{:.1%}".format)),
        (Column("needs", "number"), lambda part: "" if part.peak is None else format_bytes(part.peak)),
    ]
    return Section("parts", [Table.of(facts.parts, columns)])


def _estimated(part: PartFacts) -> str:
    return format_range(part.seconds.low, part.seconds.high) if part.seconds else ""


def _sent(facts: PlacedExplanation) -> Section:
    if not facts.sent:
        return Section("sent between devices", [], "nothing, all parts are in one place")
    often = "every step" if facts.num_steps_at_once == 1 else f"every {facts.num_steps_at_once} steps"
    waits = facts.exchange_seconds
    spent = "" if waits is None else f", a device waits up to {format_seconds(waits)} for it"
    amount = f"{format_bytes(facts.bytes_per_step)} a step in {counted(len(facts.sent), 'transfer')} {often}{spent}"
    columns = [
        (Column("output", "code"), lambda transfer: f"{transfer.part}:{transfer.port}"),
        (Column("from"), lambda transfer: _listed(transfer.origin)),
        (Column("to"), lambda transfer: "one another" if transfer.is_within else _listed(transfer.target)),
        (Column("a step", "number"), with_bars(facts.sent, lambda transfer: transfer.bytes_in_all, format_bytes)),
        (Column("time", "number"), lambda transfer: "" if waits is None else format_seconds(transfer.seconds)),
        (Column("read by", "words"), lambda transfer: ", ".join(transfer.readers)),
    ]
    others = facts.sent[_MAX_ROWS:]
    together = format_bytes(sum(transfer.bytes_in_all for transfer in others))
    rest = f"and {counted(len(others), 'more transfer')}, together {together} a step"
    return Section("sent between devices", [Table.of(facts.sent, columns, limit=_MAX_ROWS, rest=rest)], amount)


def _cached(facts: PlacedExplanation) -> Section:
    columns = [
        (Column("path", "path"), lambda output: output.path),
        (Column("array", "code"), lambda output: f"{output.dtype}{list(output.shape)}"),
        (Column("bytes", "number"), lambda output: format_bytes(output.num_bytes)),
        (Column("lives on"), lambda output: _listed(output.owners)),
        (Column("copied to"), lambda output: _listed(output.sent_to) or "none"),
    ]
    return Section("cache", [Table.of(facts.cached, columns)], "the outputs of each part in the step before")


def _cost(facts: PlacedExplanation, amount: float) -> str:
    """Write an amount of work: a time, or bytes if the hardware is not known."""
    return format_seconds(amount) if facts.target else format_bytes(amount)


def _listed(ids: Sequence[Any]) -> str:
    return ", ".join(map(str, ids))
