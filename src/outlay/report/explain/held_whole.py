"""Memory that holds the same on every device."""

from __future__ import annotations

from collections.abc import Iterator

from outlay.core.sizes import format_bytes
from outlay.report.explain.evidence import Evidence
from outlay.report.finding import Finding
from outlay.report.hlo.dtypes import total_bytes

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
                cure = "pass it as an argument (in the batch or the state), where the layout can split it"
                yield Finding("replicated", text, cure, size)
