"""Everything that costs more than it must, ranked by what it costs."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from dataclasses import replace

from outlay.analysis.findings.donation import donated_in_vain, state_not_donated, state_that_moves
from outlay.analysis.findings.evidence import Evidence
from outlay.analysis.findings.finding import Finding
from outlay.analysis.findings.fused_attention import unfused_attention
from outlay.analysis.findings.gathers import exchanges_in_fsdp, gathered_batch, whole_parameters
from outlay.analysis.findings.messages import FULL_REMATERIALIZATION
from outlay.analysis.findings.out_of_memory import too_large
from outlay.analysis.findings.resharding import back_and_forth
from outlay.analysis.hlo.dtypes import total_bytes
from outlay.core.quantities import format_bytes

SHARE = 0.1
"""Of what a device holds of the state, from which on a leaf that is whole everywhere is worth a finding."""

CONSTANT_BYTES = 2**20
"""From here on an array in the program's own text is worth a finding."""


def whole_leaves(evidence: Evidence) -> Iterator[Finding]:
    """State that is whole on every device, where it is a large share of what a device holds and others are split."""
    program = evidence.program
    if program is None or program.mesh.size == 1:
        return
    state = program.plan.state
    held = sum(leaf.bytes_per_device for leaf in state)
    if not any(leaf.is_split for leaf in state):
        return
    whole = [leaf for leaf in state if not leaf.is_split and leaf.bytes_per_device >= SHARE * held]
    for leaf in whole:
        text = (
            f"{leaf.path} is whole on all {leaf.num_copies} devices: {format_bytes(leaf.bytes_total)} each, "
            f"{leaf.bytes_total / held:.0%} of the state that a device holds ({leaf.reason or leaf.rule})"
        )
        yield Finding(
            "replicated", text, f"split it: ({leaf.path!r}, P(...)), or fsdp with a smaller min_size", leaf.bytes_total
        )


def large_constants(evidence: Evidence) -> Iterator[Finding]:
    """Arrays that the function closes over: they are copied to every device, and stand in the program's text."""
    module = evidence.module
    if module.num_partitions == 1:
        return
    for computation in module.computations.values():  # also of fusions
        for one in computation.instructions.values():
            size = total_bytes(one.shapes) if one.opcode == "constant" else 0
            if size >= CONSTANT_BYTES:
                shape = one.shapes[0]
                text = (
                    f"a constant {shape.dtype}{list(shape.dims)} of {format_bytes(size)} is part of the program, and "
                    "so whole on every device"
                )
                fix = "pass it as an argument (in the batch or the state), where the layout can split it"
                yield Finding("replicated", text, fix, size)


RATIO = 1.5
"""Of what one device computes to its share; recomputing a whole forward pass (remat) comes to 1.33."""


def repeated_work(evidence: Evidence) -> Iterator[Finding]:
    """A finding where one device computes much more than its share of the traced step."""
    work, mesh = evidence.work, evidence.mesh
    if not work.flops or mesh is None or mesh.num_devices == 1:
        return
    ratio = work.flops_compiled / work.flops
    if ratio < RATIO:
        return
    text = (
        f"a device computes {work.flops_compiled:.3g} FLOPs a step, {ratio:.1f} times its share of {work.flops:.3g}: "
        f"up to {min(ratio, mesh.num_devices):.0f} of {mesh.num_devices} devices repeat one another's work"
    )
    fix = (
        "split the batch over every axis that splits no parameter (data_parallel), and constrain the activations of "
        "the layers with collectives above"
    )
    if evidence.program is not None and evidence.program.by_hand:
        fix = (
            "split the batch over every axis of the mesh: in mode manual devices along any other axis take the same "
            'samples and compute the same; or mode="auto", which splits the products'
        )
    yield Finding("repeated-work", text, fix, int(work.bytes_accessed * (1 - 1 / ratio)))


_CAUSES = ("gathered-batch", "all-to-all-in-fsdp")
"""Kinds after which devices work on samples that are not their own."""

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
    """Every finding, in no order."""
    found = _with_what_they_cause([finding for check in _CHECKS for finding in check(evidence)])
    return [*(too_large(evidence.memory) if evidence.memory else ()), *found]


def _with_what_they_cause(findings: list[Finding]) -> list[Finding]:
    """What makes devices repeat one another's work costs what that does: a small gather may cause a lot of it."""
    repeated = max((finding.cost_bytes for finding in findings if finding.kind == "repeated-work"), default=0)
    return [
        replace(finding, cost_bytes=max(finding.cost_bytes, repeated)) if finding.kind in _CAUSES else finding
        for finding in findings
    ]


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
    return tuple(
        sorted(
            _together(kept),
            key=lambda finding: (finding.kind not in ("out-of-memory", "tight-memory"), -finding.cost_bytes),
        )
    )


def _together(findings: list[Finding]) -> Iterator[Finding]:
    num_alike = collections.Counter(findings)
    for finding, num in num_alike.items():
        yield replace(finding, num_alike=num, cost_bytes=num * finding.cost_bytes)
