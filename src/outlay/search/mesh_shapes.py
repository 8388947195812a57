"""List the meshes that the devices of a target can form with the axes of a layout. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from outlay.core.error_types import MeshError
from outlay.devices.arrange import arrange
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target


def mesh_shapes(spec: MeshSpec, target: Target) -> tuple[MeshSpec, ...]:
    """Return every way to spread all devices of a target over the axes of a mesh, the outermost axis largest first.

    An axis with at least 2 devices keeps at least 2: with 1 it would be another layout's mesh. Axes that stay inside a
    host (see `MeshSpec.crossing`) are never larger than a host.

    >>> [str(mesh) for mesh in mesh_shapes(MeshSpec.parse("data=-1,model=2"), Target.parse("h100:2x4"))]
    ['data=4,model=2', 'data=2,model=4']
    """
    names = [name for name, _ in spec.axes]
    least = [min(2, abs(size)) for _, size in spec.axes]
    shapes = []
    for sizes in _products(target.num_devices, least):
        mesh = MeshSpec(dict(zip(names, sizes, strict=True)), dict(spec.over))
        try:
            shapes.append(on_target(mesh, target))
        except MeshError:  # an axis would leave its host
            continue
    return tuple(shapes)


def on_target(mesh: MeshSpec, target: Target) -> MeshSpec:
    """Resolve a mesh for the devices of a target, as `outlay.mesh(..., target=...)` does.

    Raises:
        MeshError: it does not fit.
    """
    host = "slice" if target.hardware.kind == "tpu" else "host"
    return mesh.resolve(target.num_devices, num_groups(target), target=str(target), host=host)


def num_groups(target: Target) -> int:
    """Return the number of groups that only the slower network connects: hosts, or slices of TPUs."""
    return target.num_slices if target.hardware.kind == "tpu" else target.num_hosts


def mesh_info(mesh: MeshSpec, target: Target) -> MeshInfo:
    """Return a mesh of a target as plain data: its devices by number, each with its host (TPU: its slice).

    >>> mesh_info(MeshSpec.parse("data=2,model=2"), Target.parse("h100:2x2")).hosts
    (0, 0, 1, 1)
    """
    resolved = on_target(mesh, target)
    each = target.num_devices // num_groups(target)
    groups = [list(range(i * each, (i + 1) * each)) for i in range(num_groups(target))]
    ids = tuple(int(position) for position in arrange(resolved, groups, target.torus).flat)
    return MeshInfo(resolved.axes, ids, tuple(i // each for i in ids), "abstract")


def _products(product: int, least: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield sizes that multiply to a number, each at least as large as given."""
    first, *rest = least
    if not rest:
        if product >= first:
            yield (product,)
        return
    for size in range(product // math.prod(rest), first - 1, -1):
        if product % size == 0:
            for others in _products(product // size, rest):
                yield (size, *others)
