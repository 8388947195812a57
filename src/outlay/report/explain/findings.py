"""Everything that costs more than it must, ranked by what it costs."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from dataclasses import replace

from outlay.report.explain.donation import donated_in_vain, state_not_donated, state_that_moves
from outlay.report.explain.evidence import Evidence
from outlay.report.explain.gathers import exchanges_in_fsdp, gathered_batch, whole_parameters
from outlay.report.explain.held_whole import large_constants, whole_leaves
from outlay.report.explain.messages import FULL_REMATERIALIZATION
from outlay.report.explain.out_of_memory import too_large
from outlay.report.explain.repeated_work import repeated_work
from outlay.report.explain.resharding import back_and_forth
from outlay.report.finding import Finding

_CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    back_and_forth,
    whole_parameters,
    exchanges_in_fsdp,
    gathered_batch,
    whole_leaves,
    large_constants,
    donated_in_vain,
    state_not_donated,
    state_that_moves,
    repeated_work,
)


def find(evidence: Evidence) -> list[Finding]:
    """Every finding, in no order."""
    found = [finding for check in _CHECKS for finding in check(evidence)]
    return [*(too_large(evidence.memory) if evidence.memory else ()), *found]


def ranked(findings: list[Finding]) -> tuple[Finding, ...]:
    """The dearest first, what does not fit before what only costs, those in the same words as one.

    Of what the compiler says itself, only that is kept.
    """
    told = [f"{finding.source} {finding.text}" for finding in findings if finding.kind == FULL_REMATERIALIZATION]
    kept = [
        finding
        for finding in findings
        if finding.kind != "resharding" or not any(str(finding.source) in lines for lines in told)
    ]
    return tuple(sorted(_together(kept), key=lambda finding: (finding.kind != "out-of-memory", -finding.cost_bytes)))


def _together(findings: list[Finding]) -> Iterator[Finding]:
    num_alike = collections.Counter(findings)
    for finding, num in num_alike.items():
        yield replace(finding, num_alike=num, cost_bytes=num * finding.cost_bytes)
