"""Collect everything that costs more than it must, ranked by cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from outlay.analysis.findings.compiler_messages import FULL_REMATERIALIZATION
from outlay.analysis.findings.finding import RATIO, SEVERE, Evidence, Finding
from outlay.analysis.findings.memory import (
    donated_in_vain,
    large_constants,
    state_not_donated,
    state_that_moves,
    too_large,
    whole_leaves,
)
from outlay.core.quantities import counted, format_bytes

_CAUSES = ("gathered-batch", "all-to-all-in-fsdp")
"""Kinds of findings after which devices work on other devices' samples."""

_AT_A_LINE = ("resharding", FULL_REMATERIALIZATION)
"""Kinds of which one line may have many, with one fix."""

_OF_ANOTHER_CAUSE = ("resharding", "gathered-batch")
"""Kinds whose advice would not help where a line gathers a value because it is indexed."""


def _exchanges(evidence: Evidence) -> Iterator[Finding]:
    """Find what exchanges cost in vain, in a program that has some."""
    if not evidence.collectives:
        return
    from outlay.analysis.findings import communication
    from outlay.analysis.findings.exchanges_in_loops import exchanges_in_loops

    yield from communication.back_and_forth(evidence)
    yield from communication.whole_parameters(evidence)
    yield from communication.exchanges_in_fsdp(evidence)
    yield from communication.gathered_batch(evidence)
    if any(communication.gathers_a_value(one) for one in evidence.collectives):
        from outlay.analysis.findings.gathered_operands import gathered_operands, indexed_operands

        yield from gathered_operands(evidence)
        yield from indexed_operands(evidence)
    yield from exchanges_in_loops(evidence)


def _synchronous_loops(evidence: Evidence) -> Iterator[Finding]:
    """Find loops that wait for each exchange, which only the scheduler for GPUs makes of them."""
    if evidence.kind != "gpu":
        return
    from outlay.analysis.findings.synchronous_loops import synchronous_loops

    yield from synchronous_loops(evidence)


def _not_in_fp8(evidence: Evidence) -> Iterator[Finding]:
    """Find products that are not in FP8, in a program whose rules ask for it."""
    if evidence.program is None or not evidence.program.fp8:
        return
    from outlay.analysis.findings.computation import not_in_fp8

    yield from not_in_fp8(evidence)


def _repeated_work(evidence: Evidence) -> Iterator[Finding]:
    """Find why a device computes more than its share, where it does."""
    if evidence.repetition < RATIO:
        return
    from outlay.analysis.findings.computation import repeated_work

    yield from repeated_work(evidence)


def _unfused_attention(evidence: Evidence) -> Iterator[Finding]:
    """Find attention without a kernel, where there are kernels."""
    if evidence.kind == "cpu":
        return
    from outlay.analysis.findings.computation import unfused_attention

    yield from unfused_attention(evidence)


_CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    _exchanges,
    _synchronous_loops,
    _not_in_fp8,
    whole_leaves,
    large_constants,
    donated_in_vain,
    state_not_donated,
    state_that_moves,
    _repeated_work,
    _unfused_attention,
)
"""What to look for; a file that has nothing to look at is not entered."""


def find(evidence: Evidence) -> list[Finding]:
    """Return every finding, in no particular order."""
    findings = _with_what_they_cause([finding for check in _CHECKS for finding in check(evidence)])
    return [*(too_large(evidence.memory) if evidence.memory else ()), *findings]


def _with_what_they_cause(findings: list[Finding]) -> list[Finding]:
    """Charge findings that make devices repeat work with the repetition: a small gather may cause a lot of it."""
    repeated = [finding for finding in findings if finding.kind == "repeated-work"]
    return [_charged(finding, repeated) if finding.kind in _CAUSES else finding for finding in findings]


def _charged(finding: Finding, repeated: list[Finding]) -> Finding:
    cost = max(one.cost_bytes for one in [finding, *repeated])
    times = [one.seconds for one in [finding, *repeated] if one.seconds is not None]
    return replace(finding, cost_bytes=cost, seconds=max(times, default=None))


def ranked(findings: list[Finding], step_seconds: float | None = None) -> tuple[Finding, ...]:
    """Rank findings: memory that does not fit first, then by seconds and bytes; findings on one subject are merged.

    A resharding that the compiler itself reports is not reported twice, nor are exchanges that FSDP does not need, nor
    what is gathered to be indexed.

    Args:
        findings: the findings.
        step_seconds: what a step takes; what takes less than a hundredth of it comes last. None if unknown.
    """
    reported = [f"{finding.source} {finding.text}" for finding in findings if finding.kind == FULL_REMATERIALIZATION]
    exchanged = {finding.source for finding in findings if finding.kind == "all-to-all-in-fsdp"}
    indexed = {finding.source for finding in findings if finding.kind == "indexed-operand"}
    alike: dict[Any, list[Finding]] = {}
    for finding in findings:
        # The compiler's own report names the line of the maker or of the taker, so its text is searched too.
        is_reported = finding.source in exchanged or any(str(finding.source) in text for text in reported)
        is_reported = is_reported and finding.kind == "resharding"
        if not is_reported and not (finding.source in indexed and finding.kind in _OF_ANOTHER_CAUSE):
            alike.setdefault(_same_advice(finding), []).append(finding)
    joined = [_joined(group) for group in alike.values()]
    return tuple(
        sorted(
            joined,
            key=lambda one: (
                one.kind not in SEVERE,
                one.is_minor(step_seconds),
                -(one.seconds or 0.0),
                -one.cost_bytes,
            ),
        )
    )


def _same_advice(finding: Finding) -> Any:
    """Return what is equal of findings that are read as one: of reshardings at one line, the fix."""
    if finding.source is not None and finding.kind in _AT_A_LINE:
        return finding.kind, finding.source, finding.fix
    return finding


def _joined(group: list[Finding]) -> Finding:
    first = max(group, key=lambda one: (one.seconds or 0.0, one.cost_bytes))
    cost = sum(one.cost_bytes for one in group)
    times = [one.seconds for one in group if one.seconds is not None]
    more = len(group) - 1
    text = first.text
    if any(one.text != text for one in group):
        text += f"; and {counted(more, 'other value')} there, {format_bytes(cost)} in all"
    return replace(first, text=text, num_alike=len(group), cost_bytes=cost, seconds=sum(times) if times else None)
