"""The result of `outlay.explain`, which prints itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outlay.analysis.attribution.collective_facts import Total, totals
from outlay.analysis.attribution.live_memory import LiveMemory
from outlay.analysis.attribution.program_facts import (
    CollectiveFacts,
    HostCopyFacts,
    MemoryFacts,
    RecomputedFacts,
    Segment,
    WorkFacts,
)
from outlay.analysis.attribution.timeline import OperationFacts
from outlay.analysis.cost.estimate import Estimate
from outlay.analysis.cost.schedule import Schedule
from outlay.analysis.findings.finding import Finding
from outlay.analysis.hlo.hlo_module import HloModule
from outlay.analysis.parts.part_facts import PlacedExplanation
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target
from outlay.program.compiler_options import CompilerOptions
from outlay.render.page import Page
from outlay.render.report import Report
from outlay.report.explain.explain_page import explain_page
from outlay.report.placed_page import placed_page


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
        live_memory: memory over the schedule and its owners at the peak; None if the order is unknown.
        timeline: computation and communication in execution order; empty without a target.
        operations: the most expensive lines of the step, most expensive first; empty without a target.
        findings: what costs more than necessary, most expensive first.
        messages: the compiler's messages, verbatim.
        incomplete: what the totals lack, in words; empty if they are complete.
        notes: remarks for the reader.
        compiler_options: the compiler options that differ from the defaults; None if unknown.
        compile_seconds: the compile time; None if the program was compiled before.
        from_cache: whether the compiler's output was read from the cache.
        parse_seconds: the time that reading and explaining took.
        hlo: the optimized program; None if compilation failed.
        schedule: the part of it that determines the price, as plain data that can be saved.
        host_copies: copies to and from the host, most bytes first.
        recomputed: products that the backward pass recomputes, most FLOPs first.
        by_parts: in mode placed, the cost of each part and the traffic between parts; the facts about a single compiled
            program are then empty. None in any other mode.
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
    live_memory: LiveMemory | None = None
    estimate: Estimate | None = None
    timeline: tuple[Segment, ...] = ()
    operations: tuple[OperationFacts, ...] = ()
    messages: tuple[str, ...] = ()
    compile_seconds: float | None = None
    from_cache: bool = False
    hlo: HloModule | None = None
    schedule: Schedule | None = None
    host_copies: tuple[HostCopyFacts, ...] = ()
    recomputed: tuple[RecomputedFacts, ...] = ()
    by_parts: PlacedExplanation | None = None

    @property
    def bytes_per_step(self) -> int:
        """The bytes that a device sends in a step; in mode placed, those of the device that sends most."""
        if self.by_parts is not None:
            return math.ceil(self.by_parts.most_sent)
        return sum(one.bytes_per_step for one in self.collectives)

    @property
    def fits(self) -> bool | None:
        """Whether the step fits into a device's memory; None if memory or target is unknown."""
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
        return {
            "name": self.name,
            "target": str(self.target) if self.target else None,
            "mesh": self.mesh.to_dict() if self.mesh else None,
            "fits": self.fits,
            "bytes_per_step": self.bytes_per_step,
            "by_kind": _to_dicts(self.by_kind()),
            "by_axis": _to_dicts(self.by_axis()),
            "by_module": _to_dicts(self.by_module()),
            "by_phase": _to_dicts(self.by_phase()),
            "collectives": [
                {**dataclasses.asdict(one), "leaf": one.leaf, "bytes_per_step": one.bytes_per_step}
                for one in self.collectives
            ],
            "memory": {**dataclasses.asdict(self.memory), "verdict": self.memory.verdict} if self.memory else None,
            "live_memory": self.live_memory.to_dict() if self.live_memory else None,
            "work": dataclasses.asdict(self.work) if self.work else None,
            "estimate": self.estimate.to_dict() if self.estimate else None,
            "timeline": [dataclasses.asdict(segment) for segment in self.timeline],
            "host_copies": [dataclasses.asdict(one) for one in self.host_copies],
            "recomputed": [dataclasses.asdict(one) for one in self.recomputed],
            "operations": [dataclasses.asdict(one) for one in self.operations],
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "messages": list(self.messages),
            "incomplete": list(self.incomplete),
            "notes": list(self.notes),
            "compiler_options": self.compiler_options.to_dict() if self.compiler_options else None,
            "compile_seconds": self.compile_seconds,
            "from_cache": self.from_cache,
            "parse_seconds": self.parse_seconds,
        }

    def _page(self) -> Page:
        return explain_page(self) if self.by_parts is None else placed_page(self.by_parts)

    def _totals(self, name: Callable[[CollectiveFacts], str]) -> dict[str, Total]:
        return totals(self.collectives, name)


def _to_dicts(totals: dict[str, Total]) -> dict[str, Any]:
    return {name: dataclasses.asdict(total) for name, total in totals.items()}
