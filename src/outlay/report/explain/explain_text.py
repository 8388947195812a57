"""An explanation as text: does it fit, what is moved and why, what is held, what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from outlay.analysis.attribution.collective_facts import Row, Total, rows
from outlay.analysis.attribution.program_facts import HostCopyFacts, MemoryFacts, RecomputedFacts, WorkFacts
from outlay.analysis.findings.finding import Finding
from outlay.core.quantities import counted, format_bytes, format_flops, format_seconds, how_often
from outlay.core.table import table
from outlay.report.explain.explain_words import MAX_ROWS, place, verdict

if TYPE_CHECKING:
    from outlay.report.explain.explanation import Explanation

MAX_OPERATIONS = 8
SMALL = 100
"""Findings that cost so many times less than the dearest share a line."""
_WIDE = 130
"""Columns from which on the modules have one of their own."""


def render(found: Explanation, width: int) -> Iterator[Any]:
    """The explanation as rich renderables, for a console so many characters wide."""
    yield Text(headline(found), style="bold")
    for line, style in verdict(found):
        yield Text(line, style=style)
    options = found.compiler_options
    if options is not None and (options.values or options.notes):
        parts = [f"{options.source} ({len(options.values)} of them)", *options.notes]
        yield Text(f"compiler options: {'; '.join(parts)}", style="yellow" if options.notes else "dim")
    if found.hlo is not None:
        yield Text()
        yield from _collectives(found, width)
    if found.memory is not None:
        yield Text()
        yield from _memory(found.memory)
    if found.host_copies:
        yield Text()
        yield from _host_copies(found.host_copies)
    if found.operations:
        yield Text()
        yield from _operations(found)
    if found.work is not None:
        yield Text()
        yield from _work(found.work)
    if found.recomputed:
        yield Text()
        yield from _recomputed(found.recomputed)
    if found.findings:
        yield Text()
        yield from _findings(found)
    if found.incomplete or found.notes:
        yield Text()
    yield from (Text(f"incomplete: {what}", style="yellow") for what in found.incomplete)
    yield from (Text(f"note: {note}", style="dim") for note in found.notes)


def headline(found: Explanation) -> str:
    """What was explained, and where it runs."""
    where = str(found.mesh) if found.mesh else "no mesh known"
    # A mesh of compile-only devices names its target itself.
    target = f", target {found.target}" if found.target and str(found.target) not in where else ""
    return f"{found.name} on {where}{target}"


def _collectives(found: Explanation, width: int) -> Iterator[Any]:
    lines = rows(found.collectives)
    if not lines:
        yield Text("collectives: none", style="bold")
        return
    runs = sum(row.total.num_runs for row in lines)
    often = f"{counted(runs, 'run')} a step"
    yield Text(f"collectives: {often}, a device sends {format_bytes(found.bytes_per_step)}", style="bold")
    with_time, with_module = found.target is not None, width >= _WIDE
    columns = ["kind", "axis", "a step", "runs", *(["time"] if with_time else []), "phase", "what"]
    columns += [*(["module"] if with_module else []), "line"]
    cells = [_row(row, with_time=with_time, with_module=with_module) for row in lines[:MAX_ROWS]]
    yield table(columns, cells, right=("a step", "runs", "time"))
    yield from _more(lines[MAX_ROWS:], lambda row: row.total.bytes_per_step, format_bytes)
    yield from _sums("by kind", found.by_kind())
    yield from _sums("by axis", found.by_axis())
    yield from _sums("by phase", found.by_phase())
    if not with_module:
        yield from _sums("by module", found.by_module())


def _row(row: Row, *, with_time: bool, with_module: bool) -> list[str]:
    seconds = row.total.seconds
    return [
        row.kind,
        row.axes,
        format_bytes(row.total.bytes_per_step),
        f"{row.total.num_runs}{'' if row.is_exact else '+'}",
        *([format_seconds(seconds) if seconds is not None else ""] if with_time else []),
        row.phase,
        row.what,
        *([row.module] if with_module else []),
        place(row.source),
    ]


def _sums(title: str, totals: dict[str, Total], most: int = 6) -> Iterator[Text]:
    if len(totals) < 2:
        return
    shown = [f"{name or 'unknown'} {format_bytes(found.bytes_per_step)}" for name, found in totals.items()]
    more = f", {len(shown) - most} more" if len(shown) > most else ""
    yield Text(f"{title}: {', '.join(shown[:most])}{more}")


def _memory(memory: MemoryFacts) -> Iterator[Any]:
    yield Text("memory of a device", style="bold")
    held = [("parameters", memory.params), ("optimizer", memory.optimizer), ("other state", memory.other_state)]
    held += [("batch", memory.batch)]
    yield Text("arguments " + format_bytes(memory.arguments) + ": " + _list(held))
    outputs = f"outputs {format_bytes(memory.outputs)}, {format_bytes(memory.donated)} of it in donated memory"
    worth_saying = memory.constants > memory.peak / 100
    constants = f"; constants {format_bytes(memory.constants)}" if worth_saying else ""
    yield Text(
        f"{outputs}; temporaries {format_bytes(memory.temporaries)}{constants}; peak {format_bytes(memory.peak)}"
    )
    if memory.on_host:
        values = memory.values_on_host
        held = [("state", memory.on_host - values), ("values for the backward pass", values)]
        yield Text(f"on its host {format_bytes(memory.on_host)}: {_list(held)}")
    cells = [
        [format_bytes(value.num_bytes), f"{value.dtype}{list(value.shape)}", value.what, place(value.source)]
        for value in memory.largest
    ]
    yield table(["largest", "array", "what", "line"], cells, right=("largest",))


def _host_copies(copies: Sequence[HostCopyFacts]) -> Iterator[Any]:
    sent = sum(one.bytes_per_step for one in copies if one.to_host)
    fetched = sum(one.bytes_per_step for one in copies) - sent
    yield Text(f"copies to the host {format_bytes(sent)} a step, and back {format_bytes(fetched)}", style="bold")
    cells = [
        [
            "to the host" if one.to_host else "from the host",
            format_bytes(one.bytes_per_step),
            str(one.count),
            one.leaf or f"a value, {one.phase}",
            place(one.source),
        ]
        for one in copies[:MAX_ROWS]
    ]
    yield table(["copy", "a step", "runs", "what", "line"], cells, right=("a step", "runs"))
    yield from _more(copies[MAX_ROWS:], lambda one: one.bytes_per_step, format_bytes)


def _recomputed(products: Sequence[RecomputedFacts]) -> Iterator[Any]:
    total = sum(one.flops_per_step for one in products)
    yield Text(f"computed again in the backward pass: products of {format_flops(total)}", style="bold")
    cells = [
        [format_flops(one.flops_per_step), str(one.count), one.module, place(one.source)] for one in products[:MAX_ROWS]
    ]
    yield table(["a step", "runs", "module", "line"], cells, right=("a step", "runs"))
    yield from _more(products[MAX_ROWS:], lambda one: one.flops_per_step, format_flops)


def _more(rest: Sequence[Any], size: Callable[[Any], Any], words: Callable[[Any], str]) -> Iterator[Text]:
    if rest:
        yield Text(f"and {len(rest)} more lines, together {words(sum(map(size, rest)))} a step", style="dim")


def _operations(found: Explanation) -> Iterator[Any]:
    yield Text("what takes most of a step", style="bold")
    cells = [
        [
            format_seconds(one.seconds),
            f"{one.share:.0%}",
            one.bound_by,
            format_flops(one.flops) if one.flops else "",
            format_bytes(one.num_bytes),
            one.what,
            place(one.source),
        ]
        for one in found.operations[:MAX_OPERATIONS]
    ]
    yield table(
        ["time", "share", "bound by", "FLOPs", "bytes", "what", "line"], cells, right=("time", "share", "FLOPs")
    )


def _work(work: WorkFacts) -> Iterator[Text]:
    yield Text("work of a device in a step", style="bold")
    share = "" if work.flops is None else f", its share of the traced step is {format_flops(work.flops)}"
    moved = format_bytes(int(work.bytes_accessed))
    yield Text(f"products {format_flops(work.flops_compiled)}{share}; {moved} read and written in memory")


def _list(held: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in held if size)


def _findings(found: Explanation) -> Iterator[Any]:
    yield Text(f"findings: {len(found.findings)}", style="bold")
    small = [finding for finding in found.findings if _is_small(finding, found.findings[0])]
    for number, finding in enumerate((each for each in found.findings if each not in small), 1):
        times = f", {how_often(finding.num_alike)}" if finding.num_alike > 1 else ""
        yield Padding(Text(f"{number}. {finding.kind}{times}: {finding.text}"), (0, 0, 0, 1))
        yield Padding(Text(f"fix: {finding.fix}", style="green"), (0, 0, 0, 4))
    if small:
        shown = ", ".join(_in_short(finding) for finding in small)
        yield Padding(Text(f"and {len(small)} that cost less than 1% of the first: {shown}", style="dim"), (0, 0, 0, 1))


def _is_small(finding: Finding, dearest: Finding) -> bool:
    return 0 < finding.cost_bytes * SMALL < dearest.cost_bytes


def _in_short(finding: Finding) -> str:
    at = f" at {place(finding.source)}" if finding.source else ""
    return f"{finding.kind}{at} ({format_bytes(finding.cost_bytes)})"
