"""Build the report on a compiled program: does it fit, what does it communicate and why, and what should change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from outlay.analysis.attribution.program_facts import Segment, WorkFacts
from outlay.analysis.findings.finding import SEVERE, Finding
from outlay.core.fold import as_pattern, fold_numbers, without_layers
from outlay.core.quantities import counted, format_bytes, format_flops, format_seconds, how_often
from outlay.render.page import (
    Advice,
    Advices,
    Block,
    Chip,
    Line,
    Medium,
    Notes,
    Page,
    Section,
    Stat,
    Stats,
)
from outlay.render.page import Segment as BarSegment
from outlay.render.pictures import Lanes, Span
from outlay.report.explain.explain_memory import memory_of_device, memory_over_schedule
from outlay.report.explain.explain_tables import (
    collectives,
    colour_of_kind,
    host_copies,
    operations,
    recomputed,
    short_source,
)

if TYPE_CHECKING:
    from outlay.report.explain.explanation import Explanation

_SMALL = 100
"""Findings that cost this many times less than the most expensive one are folded into one line."""

_THIN = 0.0005
"""The smallest share of the step that is drawn; anything shorter would be thinner than a line."""


def explain_page(facts: Explanation) -> Page:
    """Lay out the facts of an explanation as a page."""
    where = str(facts.mesh) if facts.mesh else "no mesh known"
    # A mesh of compile-only devices names its target itself.
    target = f", target {facts.target}" if facts.target and str(facts.target) not in where else ""
    compiled = "" if facts.compile_seconds is None else f"Compiled in {format_seconds(facts.compile_seconds)}, "
    assumed = facts.estimate.assumptions if facts.estimate else ()
    return Page(
        title=f"{facts.name}: what the compiler made of it",
        headline=f"{facts.name} on {where}{target}",
        chips=list(_chips(facts)),
        blocks=[
            *_verdict(facts),
            *_compiler_options(facts),
            _stats(facts),
            Notes(facts.incomplete, "incomplete", is_warning=True, medium="html"),
            *_lanes(facts),
            *_findings(facts.findings, medium="html"),
            *collectives(facts),
            *memory_of_device(facts.memory),
            *memory_over_schedule(facts.live_memory, facts.memory),
            *host_copies(facts.host_copies),
            *operations(facts),
            *_work(facts.work),
            *recomputed(facts.recomputed),
            *_findings(facts.findings, medium="text"),
            *([Section("assumed of the hardware", [Notes(assumed)], medium="html")] if assumed else []),
            *([Line("", medium="text")] if facts.incomplete or facts.notes else []),
            Notes(facts.incomplete, "incomplete", is_warning=True, medium="text"),
            Notes(facts.notes),
        ],
        footer=f"All figures are per device and step. {compiled}{'read' if compiled else 'Read'} in "
        f"{format_seconds(facts.parse_seconds)}.",
    )


def _chips(facts: Explanation) -> Iterator[Chip]:
    if facts.mesh:
        yield Chip(f"mesh {' × '.join(f'{name}={size}' for name, size in facts.mesh.axes)}")
    if facts.target:
        yield Chip(str(facts.target))
    if facts.mesh is not None and facts.mesh.kind == "simulated":
        yield Chip("simulated devices", "warning", "Compiled by XLA's CPU compiler, not by that of a GPU or TPU.")
    if facts.fits is not None:
        yield Chip("fits", "good") if facts.fits else Chip("does not fit", "bad")


def _verdict(facts: Explanation) -> Iterator[Block]:
    """State the answer in a line or two."""
    memory, estimate = facts.memory, facts.estimate
    if facts.fits is False:
        peak = ""
        if memory and memory.capacity:
            peak = f": peak {format_bytes(memory.peak)}, a device has {format_bytes(memory.capacity)}"
        yield Line(f"does not fit{peak}", "bad", medium="text")
    elif facts.fits and memory and memory.capacity:
        is_tight = memory.verdict == "may not fit"
        left = f"; JAX preallocates {format_bytes(memory.pool)}" if is_tight else ""
        on_host = f", {format_bytes(memory.on_host)} on the host" if memory.on_host else ""
        peak = f"peak {format_bytes(memory.peak)} of {format_bytes(memory.capacity)} a device"
        share = f"{memory.peak / memory.capacity:.0%}"
        style = "warning" if is_tight else "good"
        yield Line(f"{memory.verdict}: {peak}, {share}{left}{on_host}", style, medium="text")
    elif memory:
        yield Line(f"peak {format_bytes(memory.peak)} a device", medium="text")
    if estimate is not None:
        low, high = format_seconds(estimate.seconds_low), format_seconds(estimate.seconds_high)
        parts = ", ".join(f"{name} {format_seconds(part)}" for name, part in estimate.parts.items() if part)
        step = f"a step would take {format_seconds(estimate.seconds)} ({low} to {high})"
        yield Line(f"{step}: {parts}", medium="text")


def _compiler_options(facts: Explanation) -> Iterator[Block]:
    options = facts.compiler_options
    if options is not None and (options.values or options.notes):
        parts = [f"{options.source} ({len(options.values)} of them)", *options.notes]
        yield Line(f"compiler options: {'; '.join(parts)}", "warning" if options.notes else "dim")


def _stats(facts: Explanation) -> Stats:
    memory, estimate, work = facts.memory, facts.estimate, facts.work
    stats = []
    if memory is not None:
        of = f"of {format_bytes(memory.capacity)} a device" if memory.capacity else "on a device"
        remark = of if facts.fits is not False else f"{of}: too much"
        stats.append(Stat("Peak memory", format_bytes(memory.peak), remark))
    elif facts.fits is False:
        stats.append(Stat("Peak memory", "too much", "compilation failed"))
    runs = sum(collective.count for collective in facts.collectives)
    stats.append(Stat("Sent in a step", format_bytes(facts.bytes_per_step), f"in {counted(runs, 'collective')}"))
    if estimate is not None:
        remark = f"{format_seconds(estimate.seconds_low)} to {format_seconds(estimate.seconds_high)}, estimated"
        stats.append(Stat("A step", format_seconds(estimate.seconds), remark))
    if work is not None:
        share = "on one device" if work.flops is None else f"its share is {format_flops(work.flops)}"
        stats.append(Stat("Products", format_flops(work.flops_compiled), share))
    return Stats(stats)


def _lanes(facts: Explanation) -> Iterator[Block]:
    """Draw each lane over time, and mark where the device waits for another lane."""
    total = max((segment.begin + segment.seconds for segment in facts.timeline), default=0.0)
    if not total or facts.estimate is None:
        return
    lanes: dict[str, list[Span]] = {"compute": []}
    for segment in facts.timeline:
        if segment.seconds >= _THIN * total:
            lanes.setdefault(segment.lane, []).append(_span(segment, total))
    estimate = facts.estimate
    legend = [
        BarSegment(name, 0, value=format_seconds(part), remark=f"{part / estimate.seconds:.0%}")
        for name, part in sorted(estimate.parts.items(), key=lambda item: -item[1])
        if part
    ]
    hidden = f", {format_seconds(estimate.hidden)} of it behind computation" if estimate.hidden else ""
    spent = format_seconds(estimate.parts["communication"] + estimate.hidden)
    remark = f"as scheduled by the compiler; {spent} of communication in all{hidden}"
    drawn = Lanes(dict(lanes), legend, mark="the device waits")
    yield Section("a step in the order of execution", [drawn], remark, medium="html")


def _span(segment: Segment, total: float) -> Span:
    waits = segment.lane != "compute" and segment.waited > 0
    times = f", {segment.count} runs in a loop" if segment.loop else ""
    exposed = f", {format_seconds(segment.waited)} waited for" if waits else ""
    return Span(
        segment.begin / total,
        segment.seconds / total,
        colour_of_kind(segment.kind),
        f"{segment.name or segment.kind}: {format_seconds(segment.seconds)}{exposed}{times}",
        min(segment.waited / segment.seconds, 1) if waits else 0.0,
    )


def _work(work: WorkFacts | None) -> Iterator[Block]:
    if work is not None:
        share = "" if work.flops is None else f", its share of the traced step is {format_flops(work.flops)}"
        moved = format_bytes(int(work.bytes_accessed))
        words = f"products {format_flops(work.flops_compiled)}{share}; {moved} read and written in memory"
        yield Section("work of a device in a step", [Line(words)], medium="text")


def _findings(findings: Sequence[Finding], medium: Medium) -> Iterator[Block]:
    if not findings:
        return
    groups = _by_layer(findings)
    costs = [sum(finding.cost_bytes for finding in group) for group in groups]
    is_minor = [0 < cost * _SMALL < costs[0] for cost in costs]
    advices = [_advice(group, cost) for group, cost in zip(groups, costs, strict=True)]
    major = [advice for advice, minor in zip(advices, is_minor, strict=True) if not minor]
    minor = [advice for advice, minor in zip(advices, is_minor, strict=True) if minor]
    title = f"and {len(minor)} that each cost less than 1% of the first"
    num = str(len(findings)) if len(groups) == len(findings) else f"{len(findings)} in {len(groups)} groups"
    yield Section("findings", [Advices(major, minor, title)], num, medium=medium)


def _by_layer(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Group findings that differ only in the layer numbers of their leaves, the most expensive group first."""
    alike: dict[tuple[Any, ...], list[Finding]] = {}
    for one in findings:
        words = without_layers(f"{one.text}\n{one.fix}")
        alike.setdefault((one.kind, words, one.source, one.num_alike), []).append(one)
    return sorted(
        alike.values(), key=lambda group: (group[0].kind not in SEVERE, -sum(one.cost_bytes for one in group))
    )


def _advice(group: Sequence[Finding], cost: int) -> Advice:
    first = group[0]
    kind = f"{first.kind}, {how_often(first.num_alike)}" if first.num_alike > 1 else first.kind
    at = f" at {short_source(first.source)}" if first.source else ""
    is_severe = first.kind == "out-of-memory"
    if len(group) == 1:
        return Advice(kind, first.text, first.fix, is_severe, f"{first.kind}{at} ({format_bytes(cost)})")
    texts = [finding.text for finding in group]
    fix = as_pattern([finding.fix for finding in group])
    kind = f"{kind}, {len(group)} alike, {format_bytes(cost)} in all"
    return Advice(
        kind, fold_numbers(texts), fix, is_severe, f"{first.kind}{at}, {len(group)} alike ({format_bytes(cost)})", texts
    )
