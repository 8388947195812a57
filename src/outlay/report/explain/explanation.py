"""The result of `outlay.explain`, and its report: does it fit, what does it send and why, and what should change."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlay.analysis.attribution.collective_facts import Total, totals
from outlay.analysis.attribution.leaves import LayoutFacts
from outlay.analysis.attribution.program_facts import (
    CollectiveFacts,
    HostCopyFacts,
    MemoryFacts,
    RecomputedFacts,
    Segment,
    Verdict,
    WorkFacts,
)
from outlay.analysis.attribution.timeline import OperationFacts
from outlay.analysis.cost.estimate import Estimate
from outlay.analysis.cost.schedule import Schedule
from outlay.analysis.findings.finding import Finding
from outlay.analysis.hlo.hlo_module import HloModule
from outlay.analysis.parts.part_facts import PlacedExplanation
from outlay.core.quantities import counted, format_bytes, format_flops, format_seconds
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target
from outlay.program.compiler_options import CompilerOptions
from outlay.render.page import Block, Chip, Deferred, Line, Notes, Page, Section, Stat, Stats, Style
from outlay.render.report import Report, as_json, fields_as_json
from outlay.report.explain.explain_findings import finding_blocks
from outlay.report.explain.explain_memory import memory_of_device, memory_over_schedule
from outlay.report.explain.explain_parts import placed_page
from outlay.report.explain.explain_tables import (
    collective_tables,
    device_chips,
    devices_in_words,
    host_copies,
    layout_of,
    operations,
    recomputed,
)
from outlay.report.explain.throughput import (
    Throughput,
    priced_line,
    threshold_lines,
    thresholds_of,
    throughput_line,
)

if TYPE_CHECKING:
    from outlay.analysis.attribution.live_memory import LiveMemory
    from outlay.analysis.cost.evidence import PublishedRun
    from outlay.report.explain.explain_front import Front
    from outlay.report.explain.explain_schedule import PricedStep

_STYLES: Mapping[Verdict, Style] = {"fits": "good", "may not fit": "warning", "does not fit": "bad"}


@dataclass(frozen=True)
class Explanation(Report):
    """The communication, memory and work of a compiled program, and their causes; returned by `outlay.explain`.

    All bytes, FLOPs and seconds are per device and step. `str()` gives plain text, rich prints it in colour on a
    terminal, and a notebook shows the page.

    Attributes:
        name: the name of the program.
        target: the hardware for memory and times; None if unknown.
        mesh: the mesh that the program is partitioned over; None if unknown.
        collectives: the collectives, in program order.
        memory: the memory of a device; None if the compiler reported no figures.
        work: FLOPs and memory traffic; None if compilation failed.
        estimate: the estimated time of a step; None without a target.
        find_live_memory: returns `live_memory`; None if there is no single compiled program.
        timeline: computation and communication in execution order; empty without a target.
        operations: the most expensive lines of the step, most expensive first; empty without a target.
        findings: what costs more than necessary, most expensive first.
        messages: the compiler's messages, verbatim.
        incomplete: what the totals lack, in words; empty if they are complete.
        notes: remarks for the reader.
        compiler_options: the compiler options that differ from the defaults; None if unknown.
        trace_seconds: the time of tracing the program and lowering it; None if that was done before.
        compile_seconds: the compile time; None if the program was compiled before.
        from_cache: whether the compiler's output was read from the cache.
        parse_seconds: the time that reading and explaining took.
        hlo: the optimized program; None if compilation failed.
        schedule: the part of it that determines the price, as plain data that can be saved.
        host_copies: copies to and from the host, most bytes first.
        recomputed: products that the backward pass recomputes, most FLOPs first.
        layout: the layout, and the leaves that are placed alike, with their dtypes; None if it is not a program's step.
        throughput: what the time of a step means; None without a target, or for what is not a program's step.
        asked: the command that asked for it; empty in Python.
        versions: those of Outlay and JAX that made it.
        nearest_published: the published training runs that are most like this step, with what was measured and what is
            predicted of them; empty for simulated CPUs, and for what trains nothing.
        by_parts: in mode placed, the cost of each part and the traffic between parts; the facts about a single compiled
            program are then empty. None in any other mode.
        front: where it stands among the candidates of a choice; None if it was not compared with one.
    """

    name: str
    target: Target | None
    mesh: MeshInfo | None
    findings: tuple[Finding, ...]
    incomplete: tuple[str, ...]
    notes: tuple[str, ...]
    compiler_options: CompilerOptions | None
    parse_seconds: float
    # Beyond here what is unknown if there is no single compiled program.
    collectives: tuple[CollectiveFacts, ...] = ()
    memory: MemoryFacts | None = None
    work: WorkFacts | None = None
    find_live_memory: Callable[[], LiveMemory | None] | None = field(default=None, repr=False, compare=False)
    estimate: Estimate | None = None
    timeline: tuple[Segment, ...] = ()
    operations: tuple[OperationFacts, ...] = ()
    messages: tuple[str, ...] = ()
    trace_seconds: float | None = None
    compile_seconds: float | None = None
    from_cache: bool = False
    hlo: HloModule | None = None
    schedule: Schedule | None = None
    host_copies: tuple[HostCopyFacts, ...] = ()
    recomputed: tuple[RecomputedFacts, ...] = ()
    layout: LayoutFacts | None = None
    throughput: Throughput | None = None
    nearest_published: tuple[PublishedRun, ...] = ()
    asked: str = ""
    versions: str = ""
    by_parts: PlacedExplanation | None = None
    front: Front | None = None

    @functools.cached_property
    def live_memory(self) -> LiveMemory | None:
        """Memory over the schedule and its owners at the peak; None if the order is unknown."""
        return None if self.find_live_memory is None else self.find_live_memory()

    @property
    def bytes_per_step(self) -> int:
        """The bytes that a device sends in a step; in mode placed, of the device that sends most."""
        if self.by_parts is not None:
            return math.ceil(self.by_parts.most_sent)
        return sum(one.bytes_per_step for one in self.collectives)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits into a device's memory; None if memory or target is unknown."""
        # If the compiler gave up there is no program, and so no memory to compare.
        if any(finding.kind == "out-of-memory" for finding in self.findings):
            return False
        return self.memory.fits if self.memory else None

    def by_kind(self) -> dict[str, Total]:
        """Sum the collectives by kind, most bytes first."""
        return self._totals(lambda one: one.kind)

    def by_axis(self) -> dict[str, Total]:
        """Sum the collectives by mesh axis; one over several axes is named by all of them, such as `data+model`."""
        return self._totals(lambda one: "+".join(one.axes))

    def by_module(self) -> dict[str, Total]:
        """Sum the collectives by the module that caused them; the name is empty if unknown."""
        return self._totals(lambda one: one.module)

    def by_phase(self) -> dict[str, Total]:
        """Sum the collectives by the phase of the step."""
        return self._totals(lambda one: one.phase)

    def of_kind(self, kind: str) -> tuple[Finding, ...]:
        """Return the findings of one kind, such as `resharding`."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        if self.by_parts is not None:
            return self.by_parts.to_dict()
        memory = {**fields_as_json(self.memory), "verdict": self.memory.verdict} if self.memory else None
        return {
            **fields_as_json(self, "hlo", "schedule", "by_parts", "find_live_memory"),
            "live_memory": as_json(self.live_memory),
            "target": str(self.target) if self.target else None,
            "fits": self.fits,
            "bytes_per_step": self.bytes_per_step,
            "by_kind": as_json(self.by_kind()),
            "by_axis": as_json(self.by_axis()),
            "by_module": as_json(self.by_module()),
            "by_phase": as_json(self.by_phase()),
            "thresholds": as_json(thresholds_of(self.collectives, self.estimate, self.throughput)),
            "collectives": [
                {**fields_as_json(one), "leaf": one.leaf, "bytes_per_step": one.bytes_per_step}
                for one in self.collectives
            ],
            "memory": memory,
        }

    def _in_short(self) -> str:
        if self.by_parts is not None:
            return f"{self.name} on {self.by_parts.mesh}, {counted(len(self.by_parts.parts), 'part')}"
        fits = {None: "", True: ", fits", False: ", does not fit"}[self.fits]
        peak = f", peak {format_bytes(self.memory.peak)} a device{fits}" if self.memory else fits
        sent = f"{format_bytes(self.bytes_per_step)} sent by {counted(len(self.collectives), 'collective')}"
        where = devices_in_words(self.mesh, self.target)
        return f"{self.name} on {where}: {sent}{peak}, {counted(len(self.findings), 'finding')}"

    def _page(self) -> Page:
        return _explain_page(self) if self.by_parts is None else placed_page(self.by_parts)

    def _totals(self, name: Callable[[CollectiveFacts], str]) -> dict[str, Total]:
        return totals(self.collectives, name)


def _explain_page(facts: Explanation) -> Page:
    """Lay out the facts of an explanation as a page."""
    compiled = "" if facts.compile_seconds is None else f"Compiled in {format_seconds(facts.compile_seconds)}, "
    return Page(
        title=f"{facts.name}: what the compiler made of it",
        headline=f"{facts.name} on {devices_in_words(facts.mesh, facts.target)}",
        chips=list(_chips(facts)),
        blocks=[
            *verdict_lines(facts),
            *asked_and_throughput(facts),
            *compiler_options_line(facts),
            _stats(facts),
            *_of_cpus(facts),
            *sections_of(facts),
        ],
        footer=f"All figures are per device and step. {compiled}{'read' if compiled else 'Read'} in "
        f"{format_seconds(facts.parse_seconds)}.",
    )


def sections_of(facts: Explanation) -> Iterator[Block]:
    """Yield all below the answer."""
    assumed = facts.estimate.assumptions if facts.estimate else ()
    sums = {
        "by kind": facts.by_kind(),
        "by axis": facts.by_axis(),
        "by phase": facts.by_phase(),
        "by module": facts.by_module(),
    }
    # A page is read from its top, a terminal from its last lines: so warnings and findings stand first here and last
    # there.
    yield Notes(facts.incomplete, "incomplete", is_warning=True, medium="html")
    yield Deferred(functools.partial(_timeline, facts), medium="html")
    yield from _front(facts)
    yield from finding_blocks(facts.findings, facts.estimate, medium="html") if facts.findings else ()
    yield from collective_tables(facts.collectives, sums, facts.bytes_per_step, with_time=facts.target is not None)
    yield from layout_of(facts.layout, facts.work)
    yield from memory_of_device(facts.memory)
    yield Deferred(functools.partial(_memory_over_schedule, facts))
    yield from host_copies(facts.host_copies)
    yield from operations(facts.operations)
    yield from _work(facts.work)
    yield from recomputed(facts.recomputed)
    yield Deferred(functools.partial(_what_if, facts), medium="html")
    yield from _evidence(facts)
    yield from finding_blocks(facts.findings, facts.estimate, medium="text") if facts.findings else ()
    if assumed:
        yield Section("assumed of the hardware", [Notes(assumed)], medium="html")
    if facts.incomplete or facts.notes:
        yield Line("", medium="text")
    yield Notes(facts.incomplete, "incomplete", is_warning=True, medium="text")
    yield Notes(facts.notes)


def _priced_step(facts: Explanation) -> PricedStep | None:
    """Return what the drawing of the step needs; None without times."""
    schedule, target, estimate = facts.schedule, facts.target, facts.estimate
    if schedule is None or target is None or estimate is None or not estimate.seconds:
        return None
    from outlay.report.explain.explain_schedule import PricedStep

    return PricedStep(schedule, target, estimate, facts.mesh, facts.throughput, facts.hlo)


def _memory_over_schedule(facts: Explanation) -> Iterator[Block]:
    return memory_over_schedule(facts.live_memory, facts.memory)


def _timeline(facts: Explanation) -> Iterator[Block]:
    if step := _priced_step(facts):
        from outlay.report.explain.explain_schedule import timeline_blocks

        yield from timeline_blocks(step)


def _what_if(facts: Explanation) -> Iterator[Block]:
    if step := _priced_step(facts):
        from outlay.report.explain.explain_schedule import what_if_blocks

        yield from what_if_blocks(step)


def _chips(facts: Explanation) -> Iterator[Chip]:
    of_simulated = "Compiled by XLA's CPU compiler, not by that of a GPU or TPU."
    yield from device_chips(facts.mesh, facts.target, of_simulated)
    if facts.fits is not None:
        verdict = (facts.fits and facts.memory and facts.memory.verdict) or "does not fit"
        yield Chip(verdict, _STYLES[verdict])


def _of_cpus(facts: Explanation) -> Iterator[Block]:
    """Say on the first screen of a page what compiling for simulated devices does not tell."""
    if facts.mesh and facts.mesh.kind == "simulated" and facts.memory is not None:
        yield Notes(["memory is that of a program for CPUs; on a GPU or TPU it differs: name a target"], medium="html")


def verdict_lines(facts: Explanation) -> Iterator[Block]:
    """State the answer in a line or two."""
    memory, estimate = facts.memory, facts.estimate
    if facts.fits is False:
        peak = ""
        if memory and memory.capacity:
            peak = f": peak {format_bytes(memory.peak)}, a device has {format_bytes(memory.capacity)}"
        yield Line(f"does not fit{peak}", _STYLES["does not fit"], medium="text")
    elif facts.fits and memory and memory.capacity:
        left = f"; JAX preallocates {format_bytes(memory.pool)}" if memory.verdict == "may not fit" else ""
        on_host = f", {format_bytes(memory.on_host)} on the host" if memory.on_host else ""
        peak = f"peak {format_bytes(memory.peak)} of {format_bytes(memory.capacity)} a device"
        share = f"{memory.peak / memory.capacity:.0%}"
        style = _STYLES[memory.verdict or "fits"]
        yield Line(f"{memory.verdict}: {peak}, {share}{left}{on_host}", style, medium="text")
    elif memory:
        yield Line(f"peak {format_bytes(memory.peak)} a device", medium="text")
    if estimate is not None:
        low, high = format_seconds(estimate.seconds_low), format_seconds(estimate.seconds_high)
        parts = ", ".join(f"{name} {format_seconds(part)}" for name, part in estimate.parts.items() if part)
        step = f"a step would take {format_seconds(estimate.seconds)} ({low} to {high})"
        yield Line(f"{step}: {parts}", medium="text")


def asked_and_throughput(facts: Explanation) -> Iterator[Block]:
    """Say what was asked for, what was priced, and what the time of a step means."""
    if facts.asked:
        yield Line(facts.asked, "dim")
    if facts.layout is not None and facts.throughput is not None:
        yield from priced_line(facts.layout, facts.work, facts.recomputed, facts.versions)
    yield from throughput_line(facts.throughput)
    if facts.front is not None:
        yield Line(facts.front.in_words)
    yield from threshold_lines(facts.collectives, facts.estimate, facts.throughput)
    if facts.nearest_published:  # there is none of simulated CPUs
        from outlay.report.explain.explain_evidence import evidence_line

        yield from evidence_line(facts.nearest_published, facts.work)


def _front(facts: Explanation) -> Iterator[Block]:
    if facts.front is not None:
        from outlay.report.explain.explain_front import front_blocks

        yield from front_blocks(facts.front)


def _evidence(facts: Explanation) -> Iterator[Block]:
    if facts.nearest_published:
        from outlay.report.explain.explain_evidence import evidence_table

        yield from evidence_table(facts.nearest_published)


def compiler_options_line(facts: Explanation) -> Iterator[Block]:
    """Say which options of the compiler the program has, if any."""
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


def _work(work: WorkFacts | None) -> Iterator[Block]:
    if work is not None:
        share = "" if work.flops is None else f", its share of the traced step is {format_flops(work.flops)}"
        moved = format_bytes(int(work.bytes_accessed))
        words = f"products {format_flops(work.flops_compiled)}{share}; {moved} read and written in memory"
        yield Section("work of a device in a step", [Line(words)], medium="text")
