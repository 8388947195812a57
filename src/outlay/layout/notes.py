"""What a plan costs without bringing anything: axes that split nothing, layouts that only copy."""

from __future__ import annotations

from collections.abc import Sequence

from outlay.core.sizes import format_bytes
from outlay.layout.plan import LeafPlan
from outlay.meshes.info import MeshInfo


def notes(mesh: MeshInfo, leaves: Sequence[LeafPlan]) -> tuple[str, ...]:
    """The notes of a plan, in words with numbers."""
    if mesh.num_devices == 1 or not leaves or any(leaf.device_ids != mesh.device_ids for leaf in leaves):
        return ()
    used = {axis for leaf in leaves for axes in leaf.dims for axis in axes}
    if not used:
        return (_nothing_split(mesh, leaves),)
    return tuple(
        f"axis {name!r} splits nothing: its {size} devices hold the same arrays and repeat the same work"
        for name, size in mesh.axes
        if name not in used and size > 1
    )


def _nothing_split(mesh: MeshInfo, leaves: Sequence[LeafPlan]) -> str:
    copied = sum(leaf.bytes_per_device for leaf in leaves) * (mesh.num_devices - 1)
    fitting = [leaf for leaf in leaves if any(n and n % mesh.num_devices == 0 for n in leaf.shape)]
    largest = max(leaves, key=lambda leaf: leaf.bytes_total)
    why = (
        f"{len(fitting)} of {len(leaves)} leaves have a dim that divides by {mesh.num_devices}"
        if fitting
        else f"no dim of {largest.path} {largest.shape} divides by {mesh.num_devices}, nor of any other leaf"
    )
    return (
        f"this layout brings nothing: every leaf is replicated {mesh.num_devices} times (+{format_bytes(copied)} "
        f"of copies) and every device repeats the same work; {why}"
    )
