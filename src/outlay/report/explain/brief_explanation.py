"""An explanation in brief: the answer, the dearest lines, the findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlay.core.quantities import counted
from outlay.render.page import Block, Line, Notes, Page
from outlay.render.report import Report
from outlay.report.explain.explain_findings import finding_blocks
from outlay.report.explain.explain_tables import dearest_collectives, devices_in_words, operations
from outlay.report.explain.explanation import (
    Explanation,
    asked_and_throughput,
    compiler_options_line,
    verdict_lines,
)

NUM_LINES = 5
"""How many of the dearest lines are shown, and of how many findings all is said."""

_NUM_NOTES = 3


@dataclass(frozen=True)
class BriefExplanation(Report):
    """An explanation in brief, for a terminal.

    Attributes:
        facts: all of it.
    """

    facts: Explanation

    def _page(self) -> Page:
        facts = self.facts
        headline = f"{facts.name} on {devices_in_words(facts.mesh, facts.target)}"
        return Page(title=headline, headline=headline, blocks=list(_blocks(facts)))


def _blocks(facts: Explanation) -> Iterator[Block]:
    yield from verdict_lines(facts)
    yield from asked_and_throughput(facts)
    yield from compiler_options_line(facts)
    if facts.operations:
        yield from operations(facts.operations, NUM_LINES)
    else:  # without a target no line has a time
        yield from dearest_collectives(facts.collectives, facts.bytes_per_step, NUM_LINES)
    yield from finding_blocks(facts.findings, facts.estimate, "text", NUM_LINES)
    yield Line("")
    yield Notes(facts.incomplete[:_NUM_NOTES], "incomplete", is_warning=True)
    sent = counted(len(facts.collectives), "collective")
    yield Line(f"{sent} by line, memory over the schedule, the largest arrays, notes: --all, or --html FILE", "dim")
