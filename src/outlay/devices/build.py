"""`outlay.mesh`: build a plain `jax.sharding.Mesh` from named sizes, over all devices."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from outlay.core.error_types import MeshError
from outlay.core.jax_compat import attached_devices
from outlay.core.public_names import called_as
from outlay.devices.mesh_info import host_of
from outlay.devices.mesh_spec import MeshSpec

if TYPE_CHECKING:
    from outlay.devices.target import Target

_NAMES = ("data", "model", "stage", "expert")
"""Names for axes that have none, in what a message proposes."""


@called_as(
    "outlay.mesh(data=4, model=2)",
    shape="sizes by the names of their axes: outlay.mesh(data=4, model=2)",
    axis_names="names with their sizes: outlay.mesh(data=4, model=2)",
    num_devices="outlay.mesh(data=-1) takes all devices",
)
def mesh(
    spec: MeshSpec | Mapping[str, int] | str | None = None,
    /,
    *,
    devices: Sequence[jax.Device] | None = None,
    over: Mapping[str, str] | None = None,
    explicit: bool = False,
    target: Target | str | None = None,
    **axes: int,
) -> Mesh:
    """Make a mesh over all devices, its axes in Auto mode: XLA decides what the layout leaves open.

    On several hosts, axes that stay inside a host run over neighbouring devices of one host, and the others over hosts
    (see `MeshSpec`). TPUs of a slice are linked across their hosts: there the axes follow the torus, and an axis that
    may cross hosts may cross slices. No global mesh is set: pass the mesh along.

    Args:
        spec: the axes as text such as `"data=4,model=2"`, a dictionary or a `MeshSpec`, instead of `axes`.
        devices: the devices to use; by default all that JAX has.
        over: axis name to "hosts" (it may cross hosts) or "host" (it must not).
        explicit: use Explicit mode instead: shardings are part of the arrays' types, and where an operation leaves the
            sharding of its result open, a program names the line and what to write there.
        target: plan for these devices instead of the attached ones: `"h100:32x8"` is 32 hosts of 8 H100. Programs on
            such a mesh are compiled by the real compiler, on any machine, and cannot run.
        **axes: size of each axis, outermost first; one may be -1, for all remaining devices.

    Raises:
        BackendError: JAX does not start.
        MeshError: the axes do not use all devices, or an axis would cross hosts without permission.
        TargetError: the target is unknown, or its compiler is not installed.

    >>> mesh = outlay.mesh(data=-1, model=2)
    >>> mesh.axis_names, mesh.devices.shape
    (('data', 'model'), (4, 2))
    """
    _check_no_size("devices", devices)
    _check_no_size("over", over)
    _check_no_size("target", target)
    if not isinstance(explicit, bool):
        _check_no_size("explicit", explicit)
    requested = _spec_of(spec, over, axes)
    if target is not None:
        if devices is not None:
            raise MeshError(f"devices are given twice: as devices= and as target={str(target)!r}; keep one of the two")
        return _target_mesh(requested, target, explicit)
    available = list(attached_devices() if devices is None else devices)
    if len(set(available)) < len(available):
        raise MeshError(f"devices= holds {len(available)} devices, but only {len(set(available))} different ones")
    hosts = [host_of(device) for device in available]
    groups = _grouped(hosts)
    try:
        host = "host" if len(groups) == len(set(hosts)) else "group"
        resolved = requested.resolve(len(available), max(len(groups), 1), host=host)
    except MeshError as error:
        from outlay.devices.arrange import unequal_hosts

        raise _with_hosts(error, unequal_hosts(hosts), len(groups[0]) if groups else 0) from None
    if devices is None and len(groups) == 1:
        # JAX knows how the devices of one machine are wired (the torus of a TPU); this library does not.
        names, sizes = zip(*resolved.axes, strict=True)
        return jax.make_mesh(sizes, names, axis_types=_types(resolved, explicit))
    from outlay.devices.arrange import arrange

    return _mesh_of(available, arrange(resolved, groups), resolved, explicit)


def _with_hosts(error: MeshError, unequal: str, size: int) -> MeshError:
    """Return the error; where hosts are unequal, with how many devices each of them has."""
    if not unequal:
        return error
    return MeshError(
        f"{error}\n  the hosts differ: {unequal}; counted in equal groups of {size}, each on one host\n"
        "  or start as many processes on each host as on the others: #SBATCH --ntasks-per-node=N, mpirun --map-by "
        "ppr:N:node"
    )


def _target_mesh(requested: MeshSpec, target: Target | str, explicit: bool) -> Mesh:
    """Return the mesh of a target's devices, its axes along the target's hosts, or along the torus of its slices."""
    from outlay.devices.arrange import arrange
    from outlay.devices.compile_only import target_devices
    from outlay.devices.target import Target

    target = Target.parse(target) if isinstance(target, str) else target
    compile_only, island_of = target_devices(target), host_of
    if target.torus:
        island_of = _slice_of
        compile_only = sorted(
            compile_only, key=lambda device: (_slice_of(device), tuple(device.coords), device.core_on_chip)
        )
    groups = _grouped([island_of(device) for device in compile_only])
    resolved = requested.resolve(len(compile_only), len(groups), target=str(target), host=target.island)
    if len(groups) == 1 and not target.torus:
        order = np.arange(len(compile_only)).reshape(tuple(resolved.axis_sizes.values()))
    else:
        order = arrange(resolved, groups, target.torus)
    return _mesh_of(compile_only, order, resolved, explicit)


def _grouped(hosts: Sequence[int]) -> list[list[int]]:
    if len(set(hosts)) == 1:
        return [[*range(len(hosts))]]
    from outlay.devices.arrange import group_by_host

    return group_by_host(hosts)


def _slice_of(device: jax.Device) -> int:
    return getattr(device, "slice_index", 0)  # a single slice has no such attribute


def _mesh_of(devices: Sequence[jax.Device], order: np.ndarray, spec: MeshSpec, explicit: bool) -> Mesh:
    array = np.empty(len(devices), dtype=object)
    array[:] = devices
    return Mesh(array[order], tuple(spec.axis_sizes), axis_types=_types(spec, explicit))


# Always passed: `jax.make_mesh` defaults to Explicit and `Mesh` to Auto (JAX 0.10.2 and 0.12).
def _types(spec: MeshSpec, explicit: bool) -> tuple[AxisType, ...]:
    return (AxisType.Explicit if explicit else AxisType.Auto,) * len(spec.axes)


def _spec_of(
    spec: MeshSpec | Mapping[str, int] | str | None, over: Mapping[str, str] | None, axes: Mapping[str, int]
) -> MeshSpec:
    if spec is None and not axes:
        raise MeshError("a mesh needs axes: outlay.mesh(data=4, model=2), or outlay.mesh(data=-1) for all devices")
    if isinstance(sizes := dict(axes).get("shape"), tuple | list):
        raise _without_names(sizes)
    if spec is None:
        return MeshSpec(axes, over)
    if isinstance(spec, str) and "=" not in spec and _is_target(spec):
        raise MeshError(f"{spec!r} is a target, not a mesh\n  fix: outlay.mesh(data=-1, target={spec!r})")
    if isinstance(spec, str) and re.fullmatch(r"\d+(\s*[x,* ]\s*\d+)*", spec.strip()):
        sizes = tuple(map(int, re.findall(r"\d+", spec)))
        raise _without_names(sizes if sizes[1:] else sizes[0])
    if not isinstance(spec, str | Mapping | MeshSpec):
        raise _without_names(spec)
    if axes:
        extra = ", ".join(f"{name}={size}" for name, size in axes.items())
        raise MeshError(f"axes are given twice: as {str(spec)!r} and as {extra}; keep one of the two")
    read = MeshSpec.parse(spec) if isinstance(spec, str) else MeshSpec(spec) if isinstance(spec, Mapping) else spec
    declared = dict(read.over)
    clashes = [name for name, where in (over or {}).items() if declared.get(name, where) != where]
    if clashes:
        lines = ", ".join(f"{name!r} over {declared[name]!r} and {(over or {})[name]!r}" for name in clashes)
        raise MeshError(f"axes are declared twice: {lines}; keep one of the two")
    return MeshSpec(read.axis_sizes, {**declared, **(over or {})})


def _is_target(text: str) -> bool:
    from outlay.devices.hardware import known_hardware

    return text.partition(":")[0] in known_hardware()


def _without_names(spec: Any) -> MeshError:
    """Return the error for sizes without the names of their axes, or for something else."""
    sizes = [spec] if isinstance(spec, int) else list(spec) if isinstance(spec, tuple | list) else []
    if sizes and len(sizes) <= len(_NAMES) and all(isinstance(size, int) for size in sizes):
        line = ", ".join(f"{name}={size}" for name, size in zip(_NAMES, sizes, strict=False))
        what = f"{spec} has no names for its axes, by which rules know them"
        return MeshError(f"{what}\n  fix: outlay.mesh({line})")
    if isinstance(spec, Mesh):
        return MeshError("this is a mesh already\n  fix: pass it as it is: outlay.program(..., mesh=mesh)")
    return MeshError(
        f"a mesh is made from axes with their sizes, and not from a {type(spec).__name__}\n"
        "  fix: outlay.mesh(data=4, model=2), or outlay.mesh(data=-1) for all devices"
    )


def _check_no_size(parameter: str, value: object) -> None:
    """Raise if an axis was meant that has the name of a parameter of `mesh`."""
    if isinstance(value, int):
        raise MeshError(
            f"{parameter}= is a parameter of outlay.mesh, not an axis; write an axis of that name in the text form: "
            f"outlay.mesh('{parameter}={value}')"
        )
