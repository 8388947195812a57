"""Everything that costs more than it must, ranked by what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from outlay.report.explain.donation import donated_in_vain, state_not_donated, state_that_moves
from outlay.report.explain.evidence import Evidence
from outlay.report.explain.facts import Finding
from outlay.report.explain.gathers import exchanges_in_fsdp, gathered_batch, whole_parameters
from outlay.report.explain.held_whole import large_constants, whole_leaves
from outlay.report.explain.messages import FULL_REMATERIALIZATION
from outlay.report.explain.out_of_memory import too_large
from outlay.report.explain.repeated_work import repeated_work
from outlay.report.explain.resharding import back_and_forth

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
    """The dearest first, what does not fit before what only costs; of what the compiler says itself, only that."""
    told = [f"{finding.source} {finding.text}" for finding in findings if finding.kind == FULL_REMATERIALIZATION]
    kept = [
        finding
        for finding in findings
        if finding.kind != "resharding" or not any(str(finding.source) in lines for lines in told)
    ]
    return tuple(sorted(kept, key=lambda finding: (finding.kind != "out-of-memory", -finding.cost_bytes)))
