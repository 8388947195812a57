"""Collect everything that costs more than it must, ranked by cost."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from dataclasses import replace

from outlay.analysis.findings.communication import back_and_forth, exchanges_in_fsdp, gathered_batch, whole_parameters
from outlay.analysis.findings.compiler_messages import FULL_REMATERIALIZATION
from outlay.analysis.findings.computation import repeated_work, unfused_attention
from outlay.analysis.findings.finding import SEVERE, Evidence, Finding
from outlay.analysis.findings.memory import (
    donated_in_vain,
    large_constants,
    state_not_donated,
    state_that_moves,
    too_large,
    whole_leaves,
)

_CAUSES = ("gathered-batch", "all-to-all-in-fsdp")
"""Kinds of findings after which devices work on other devices' samples."""

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
    unfused_attention,
)


def find(evidence: Evidence) -> list[Finding]:
    """Return every finding, in no particular order."""
    findings = _with_what_they_cause([finding for check in _CHECKS for finding in check(evidence)])
    return [*(too_large(evidence.memory) if evidence.memory else ()), *findings]


def _with_what_they_cause(findings: list[Finding]) -> list[Finding]:
    """Charge findings that make devices repeat work with the repetition: a small gather may cause a lot of it."""
    repeated = max((finding.cost_bytes for finding in findings if finding.kind == "repeated-work"), default=0)
    return [
        replace(finding, cost_bytes=max(finding.cost_bytes, repeated)) if finding.kind in _CAUSES else finding
        for finding in findings
    ]


def ranked(findings: list[Finding]) -> tuple[Finding, ...]:
    """Rank findings: what does not fit first, then by cost; equal ones become one.

    A resharding that the compiler itself reports is not reported twice.
    """
    reported = [f"{finding.source} {finding.text}" for finding in findings if finding.kind == FULL_REMATERIALIZATION]
    # The compiler's own report names the line of the maker or of the taker, so its text is searched too.
    num_alike = collections.Counter(
        finding
        for finding in findings
        if finding.kind != "resharding" or not any(str(finding.source) in text for text in reported)
    )
    joined = [replace(one, num_alike=num, cost_bytes=num * one.cost_bytes) for one, num in num_alike.items()]
    return tuple(sorted(joined, key=lambda one: (one.kind not in SEVERE, -one.cost_bytes)))
