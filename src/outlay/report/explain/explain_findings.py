"""Lay out the findings of an explanation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from outlay.analysis.cost.estimate import Estimate
from outlay.analysis.findings.finding import SEVERE, Finding
from outlay.core.equal_layers import as_pattern, fold_numbers, without_layers
from outlay.core.quantities import counted, format_bytes, how_often
from outlay.render.page import Advice, Advices, Block, Line, Medium, Section
from outlay.report.explain.explain_tables import short_source

_SMALL = 100
"""Findings that cost this many times less than the most expensive one are folded into one line."""


def finding_blocks(
    findings: Sequence[Finding], estimate: Estimate | None, medium: Medium, limit: int | None = None
) -> Iterator[Block]:
    """Lay out findings: the expensive ones with their fixes, all others in one line.

    Args:
        findings: the findings, of which there are some.
        estimate: the time of a step, if known.
        medium: where they are shown.
        limit: of how many expensive ones all is said; None for all of them.
    """
    groups = _by_layer(findings)
    costs = [sum(finding.cost_bytes for finding in group) for group in groups]
    step = estimate.seconds if estimate else None
    is_short = [_is_minor(group, step) for group in groups]
    # What has no cost in bytes, such as an idle device, is not therefore minor.
    is_small = [
        one.seconds is None and 0 < cost * _SMALL < costs[0] for (one, *_), cost in zip(groups, costs, strict=True)
    ]
    is_minor = [any(either) for either in zip(is_short, is_small, strict=True)]
    advices = [_advice(group, cost) for group, cost in zip(groups, costs, strict=True)]
    major = [advice for advice, minor in zip(advices, is_minor, strict=True) if not minor]
    minor = [advice for advice, minor in zip(advices, is_minor, strict=True) if minor]
    title = f"{'and ' if major else ''}{len(minor)} that each cost less than 1% of the "
    title += "step" if any(is_short) else "first"
    num = str(len(findings)) if len(groups) == len(findings) else f"{len(findings)} in {len(groups)} groups"
    left = len(major[limit:]) if limit is not None else 0
    more = [Line(f"and {counted(left, 'finding')} that cost less")] if left else []
    yield Section("findings", [Advices(major[:limit], minor, title), *more], num, medium=medium)


def _is_minor(group: Sequence[Finding], step: float | None) -> bool:
    """Return whether findings together take less than a hundredth of a step."""
    return replace(group[0], seconds=_seconds(group)).is_minor(step)


def _seconds(group: Sequence[Finding]) -> float | None:
    times = [one.seconds for one in group if one.seconds is not None]
    return sum(times) if times else None


def _by_layer(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Group findings that differ only in the layer numbers of their leaves, the most expensive group first."""
    alike: dict[tuple[Any, ...], list[Finding]] = {}
    for one in findings:
        words = without_layers(f"{one.text}\n{one.fix}")
        alike.setdefault((one.kind, words, one.source, one.num_alike), []).append(one)
    # Together, many cheap ones may cost more than one that is expensive.
    return sorted(
        alike.values(),
        key=lambda group: (
            group[0].kind not in SEVERE,
            -(_seconds(group) or 0.0),
            -sum(one.cost_bytes for one in group),
        ),
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
