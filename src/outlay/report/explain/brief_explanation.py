"""An explanation in brief: the answer, the dearest lines, the findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outlay.core.quantities import counted
from outlay.render.page import Block, Line, Notes, Page
from outlay.render.report import Report
from outlay.render.text import is_longer
from outlay.report.explain.explain_findings import finding_blocks
from outlay.report.explain.explain_memory import memory_of_device
from outlay.report.explain.explain_tables import dearest_collectives, devices_in_words, operations
from outlay.report.explain.explanation import (
    Explanation,
    asked_and_throughput,
    compiler_options_line,
    verdict_lines,
)

NUM_LINES = 5
"""How many of the dearest lines are shown, and of how many findings all is said."""

MOST_LINES = 60
"""The lines that it has at most, on a terminal of usual width."""

_NUM_NOTES, _WIDTH = 3, 120


@dataclass(frozen=True)
class BriefExplanation(Report):
    """An explanation in brief, for a terminal.

    Attributes:
        facts: all of it.
    """

    facts: Explanation

    def _page(self) -> Page:
        # What does not fit any more is left out, first what is named first here.
        for left_out in ((), ("memory",), ("memory", "collectives")):
            page = _page_without(self.facts, left_out)
            if not is_longer(page, MOST_LINES + 1, _WIDTH):
                break
        return page


def _page_without(facts: Explanation, left_out: Sequence[str]) -> Page:
    headline = f"{facts.name} on {devices_in_words(facts.mesh, facts.target)}"
    return Page(title=headline, headline=headline, blocks=list(_blocks(facts, left_out)))


def _blocks(facts: Explanation, left_out: Sequence[str]) -> Iterator[Block]:
    yield from verdict_lines(facts)
    yield from asked_and_throughput(facts)
    yield from compiler_options_line(facts)
    if "collectives" not in left_out or not facts.operations:  # without a target no line has a time
        yield from dearest_collectives(facts.collectives, facts.bytes_per_step, NUM_LINES)
    if "memory" not in left_out:
        yield from memory_of_device(facts.memory)
    yield from operations(facts.operations, NUM_LINES)
    yield from finding_blocks(facts.findings, facts.estimate, "text", NUM_LINES) if facts.findings else ()
    yield Line("")
    yield Notes(facts.incomplete[:_NUM_NOTES], "incomplete", is_warning=True)
    sent = counted(len(facts.collectives), "collective")
    yield Line(f"{sent} by line, memory over the schedule, the largest arrays, notes: --all, or --html FILE", "dim")
