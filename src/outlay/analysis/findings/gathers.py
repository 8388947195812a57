"""Collectives that a layout did not mean: whole parameters gathered, exchanges in plain FSDP, a gathered batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlay.analysis.attribution.program_facts import CollectiveFacts
from outlay.analysis.findings.constraints import at, spread_samples
from outlay.analysis.findings.evidence import Evidence
from outlay.analysis.findings.finding import Finding
from outlay.analysis.hlo.hlo_module import SourceLine
from outlay.core.quantities import format_bytes, how_often
from outlay.layout.placement import spec_text
from outlay.layout.plan import LeafPlan
from outlay.layout.policies import LargestDim
from outlay.program.program import Program


def whole_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Parameters that are split by a rule other than FSDP, so as to be used in pieces, but are gathered."""
    program = evidence.program
    if program is None:
        return
    planned = {leaf.path: leaf for leaf in program.plan.state}
    for path, gathers in _by_leaf(evidence.collectives).items():
        if path not in planned or not path.startswith("params"):
            continue
        meant = fsdp_axes(program)
        odd = [one for one in gathers if set(one.axes) - meant]
        if odd:
            yield _whole_parameter(planned[path], odd, by_hand=program.by_hand)


def fsdp_axes(program: Program) -> set[str]:
    """The axes along which the layout splits parameters only to gather them where they are used."""
    policies = [rule.placement for rule in program.layout if not rule.names("opt_state") and not rule.names("grads")]
    return {policy.axis for policy in policies if isinstance(policy, LargestDim)}


def _whole_parameter(leaf: LeafPlan, gathers: Sequence[CollectiveFacts], *, by_hand: bool) -> Finding:
    cost = _bytes(gathers)
    runs = sum(one.count for one in gathers)
    axes = sorted({axis for one in gathers for axis in one.axes})
    source = _source(gathers)
    text = (
        f"{leaf.path} is split as {spec_text(leaf.spec)} by rule {leaf.rule}, but gathered over {'+'.join(axes)} "
        f"{how_often(runs)} a step{at(source)}: {format_bytes(cost)}"
    )
    fix = (
        "split it along a dim that the operation keeps (columns of one layer, rows of the next), or constrain the "
        f"operation's other operand{at(source)}: outlay.constrain(x, P(..., {axes[0]!r}))"
    )
    if by_hand:
        fix = (
            'mode="auto", which splits the products too: in mode manual every device computes whole layers for its own '
            f"samples, and splitting parameters over {'+'.join(axes)} only saves memory"
        )
    return Finding("whole-parameter-gather", text, fix, cost, source)


def exchanges_in_fsdp(evidence: Evidence) -> Iterator[Finding]:
    """All-to-all under a layout that only splits the batch, and parameters to gather them: no value needs it."""
    program = evidence.program
    if program is None or not fsdp_axes(program):
        return
    plain = fsdp_axes(program) | {axis for leaf in program.plan.of_kind("batch") for axis in (*leaf.dims, ())[0]}
    used = {axis for leaf in program.plan for axes in leaf.dims for axis in axes}
    if used - plain:
        return
    at_line: dict[SourceLine | None, list[CollectiveFacts]] = {}
    for one in evidence.collectives:
        if one.kind == "all-to-all":
            at_line.setdefault(one.source, []).append(one)
    for source, found in at_line.items():
        cost = sum(one.bytes_per_step for one in found)
        axis = next((axis for one in found for axis in one.axes), "data")
        text = (
            f"{how_often(sum(one.count for one in found))} a step values are exchanged by all-to-all{at(source)}, "
            f"which FSDP never needs: {format_bytes(cost)}; the compiler splits activations like a parameter there"
        )
        fix = spread_samples(evidence, "the activations", source, axis)
        yield Finding("all-to-all-in-fsdp", text, fix, cost, source)


def gathered_batch(evidence: Evidence) -> Iterator[Finding]:
    """Leaves of the batch that every device gathers, so that all do the same work on all samples."""
    for path, gathers in _by_leaf(evidence.collectives).items():
        if not path.startswith("batch"):
            continue
        cost, source = _bytes(gathers), _source(gathers)
        axis = next((axis for one in gathers for axis in one.axes), "data")
        text = (
            f"{path} is gathered{at(source)}, {format_bytes(cost)} a step: from there on every device works on all "
            "samples, not on its own"
        )
        fix = spread_samples(evidence, "the values computed from it", source, axis)
        yield Finding("gathered-batch", text, fix, cost, source)


def _by_leaf(collectives: Sequence[CollectiveFacts]) -> dict[str, list[CollectiveFacts]]:
    """The all-gathers of leaves."""
    found: dict[str, list[CollectiveFacts]] = {}
    for one in collectives:
        for leaf in one.leaves if one.kind == "all-gather" else ():
            found.setdefault(leaf, []).append(one)
    return found


def _bytes(found: Sequence[CollectiveFacts]) -> int:
    """What is sent for one leaf; of leaves that are gathered together its share, as if all were alike."""
    return sum(one.bytes_per_step // len(one.leaves) for one in found)


def _source(found: Sequence[CollectiveFacts]) -> SourceLine | None:
    return next((one.source for one in found if one.source), None)
