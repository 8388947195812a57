"""Offer, with a finding, the rule that places the value of its line, so that the model need not be touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jax.sharding import PartitionSpec

from outlay.analysis.findings.finding import Finding
from outlay.analysis.hlo.hlo_module import SourceLine
from outlay.core.error_types import OutlayError
from outlay.layout.layout import Layout
from outlay.layout.placement import spec_text
from outlay.layout.rule import SOURCE, Rule
from outlay.program.program import Program

MOST = 3
"""The most rules that are tried: each takes a trace of the step."""


def with_rules(findings: Sequence[Finding], program: Program | None, seconds: float | None) -> tuple[Finding, ...]:
    """Add to the fixes of the most expensive findings a rule for their line, if the program can be made with it.

    Args:
        findings: the findings, most expensive first.
        program: the program, if there is one.
        seconds: what a step takes; for what takes less than a hundredth of it no rule is tried. None if unknown.
    """
    places = {
        number: (one.source, one.spec)
        for number, one in enumerate(findings)
        if one.spec is not None and one.source is not None and not one.is_minor(seconds)
    }
    if program is None or not places or program.why_no_source_rules:
        return tuple(findings)
    offered: dict[int, Rule] = {}
    tried: set[str] = set()
    for number, (source, spec) in places.items():
        if len(tried) == MOST:
            break
        rule = Rule(line_pattern(source), spec)
        if rule.pattern not in tried and _can_be_made(program, rule):
            offered[number] = rule
        tried.add(rule.pattern)
    return tuple(_with_rule(one, offered[number]) if number in offered else one for number, one in enumerate(findings))


def _with_rule(finding: Finding, rule: Rule) -> Finding:
    written = f'("{rule.pattern}", {spec_text(finding.spec or PartitionSpec())})'
    return replace(finding, fix=f"{finding.fix}; or leave the model as it is, with the rule {written} first")


def line_pattern(source: SourceLine) -> str:
    """Return the pattern of a rule for what a line makes."""
    path = Path(source.file)
    file = "/".join(path.parts[-2:]) if path.is_absolute() else path.as_posix()
    return f"{SOURCE}{file}:{source.line}"


def _can_be_made(program: Program, rule: Rule) -> bool:
    try:
        program.with_layout(Layout([rule]) + program.layout)
    except OutlayError:  # such as a value of the optimizer, or of fewer dims
        return False
    return True
