"""Devices that compute what others compute, too."""

from __future__ import annotations

from collections.abc import Iterator

from outlay.report.explain.evidence import Evidence
from outlay.report.finding import Finding

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
    cure = (
        "split the batch over every axis that splits no parameter (data_parallel), and constrain the activations of "
        "the layers with collectives above"
    )
    if evidence.program is not None and evidence.program.mode == "manual":
        cure = (
            "split the batch over every axis of the mesh: in mode manual devices along any other axis take the same "
            'samples and compute the same; or mode="auto", which splits the products'
        )
    yield Finding("repeated-work", text, cure, int(work.bytes_accessed * (1 - 1 / ratio)))
