"""A mesh as plain data, which plans and reports carry instead of devices: names, ids, hosts, and what can run on it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from outlay.core.error_types import MeshError, ProgramError
from outlay.core.jax_compat import is_compile_only
from outlay.core.one_line import OneLine
from outlay.core.quantities import plural

if TYPE_CHECKING:
    from outlay.devices.target import Target


_devices_per_simulated_host: int | None = None


class DeviceId(int):
    """The id of a device in a job of several processes.

    JAX numbers the devices of CPU processes 0, 1, 2048, 2049. Such an id is compared and saved as that number, and
    written `process:index`.

    Attributes:
        process: the process that the device belongs to.
        index: the position of the device among those of its process.

    Example:
        >>> device = DeviceId.at(2049, process=1, index=1)
        >>> device == 2049, f"device {device}"
        (True, 'device 1:1')
    """

    process: int
    index: int

    @classmethod
    def at(cls, number: int, *, process: int, index: int) -> DeviceId:
        """Create an id that knows its process."""
        device = cls(number)
        device.process, device.index = process, index
        return device

    def __str__(self) -> str:
        return f"{self.process}:{self.index}"


def device_id(device: jax.Device) -> int:
    """Return the id of a device; in a job of several processes, one that knows its process."""
    # Compile-only devices belong to no process, and asking for the number of processes would start a backend.
    if is_compile_only(device) or jax.process_count() == 1:
        return device.id
    index = _ids_by_process(device.platform)[device.process_index].index(device.id)
    return DeviceId.at(device.id, process=device.process_index, index=index)


@functools.cache  # asked for each device of a mesh, while those of a platform never change
def _ids_by_process(platform: str) -> dict[int, list[int]]:
    ids: dict[int, list[int]] = {}
    for device in sorted(jax.devices(platform), key=lambda device: device.id):
        ids.setdefault(device.process_index, []).append(device.id)
    return ids


def host_of(device: Any) -> int:
    """Return the number of the host of a device.

    After `outlay.join()` it is the machine that the device's process runs on, since several processes may share one;
    before, it is the process. With `outlay.simulate(..., num_hosts=)` it is a simulated host.
    """
    if _devices_per_simulated_host is not None and device.platform == "cpu":
        return device.id // _devices_per_simulated_host
    if device.process_index == 0:  # the first host, whichever processes share it
        return 0
    from outlay.jobs.current_job import host_number

    machine = host_number(device.process_index)
    return device.process_index if machine is None or is_compile_only(device) else machine


def simulate_hosts(devices_per_host: int | None) -> None:
    """Group devices by id on simulated hosts of this many devices; with None, use the real hosts again."""
    global _devices_per_simulated_host
    _devices_per_simulated_host = devices_per_host


def is_explicit(mesh: Mesh) -> bool:
    """Return whether shardings are part of the arrays' types on this mesh."""
    return AxisType.Explicit in mesh.axis_types


def processes_of(mesh: Mesh) -> list[int]:
    """Return the numbers of the processes that run a program on this mesh together; none for a single process."""
    if jax.process_count() == 1:
        return []
    processes = sorted({device.process_index for device in mesh.devices.flat})
    return processes if len(processes) > 1 else []


def is_first() -> bool:
    """Return whether this is the process that names and completes shared files, and prints."""
    return jax.process_index() == 0


Kind = Literal["attached", "simulated", "compile-only", "abstract"]

compile_only_devices: dict[Target, list[jax.Device]] = {}
"""The devices of each compile-only target asked for so far; those of one target are created once."""


@dataclass(frozen=True)
class MeshInfo(OneLine):
    """Names, sizes, device ids and hosts of a mesh.

    Attributes:
        axes: (name, size) of each mesh axis, outermost first.
        device_ids: the id of every device in row-major order over the axes.
        hosts: the host of every device, in the same order.
        kind: `attached` hardware, `simulated` CPU devices, `compile-only` devices of a target, on which nothing runs,
            or `abstract` (names and sizes only).
        platform: JAX's platform name, such as `cpu` or `gpu`; empty for an abstract mesh.
        target: for compile-only devices, the target they were made for, such as `h100:1x8`.
    """

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...]
    hosts: tuple[int, ...]
    kind: Kind
    platform: str = ""
    target: str = ""

    def __post_init__(self) -> None:
        if math.prod(size for _, size in self.axes) != len(self.device_ids):
            raise MeshError(f"axes {dict(self.axes)} do not hold {len(self.device_ids)} devices")

    @classmethod
    def of(cls, mesh: Mesh | AbstractMesh | MeshInfo) -> MeshInfo:
        """Read a JAX mesh; no device is kept.

        Raises:
            MeshError: it is not a mesh.

        >>> MeshInfo.of(outlay.mesh(data=4, model=2)).axis_sizes
        {'data': 4, 'model': 2}
        """
        if isinstance(mesh, MeshInfo):
            return mesh
        if not isinstance(mesh, Mesh | AbstractMesh):
            raise MeshError(
                f"a {type(mesh).__name__} is not a mesh: {mesh!r:.60}\n  fix: outlay.mesh(data=4, model=2), or another "
                "jax.sharding.Mesh"
            )
        axes = tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
        if isinstance(mesh, AbstractMesh):
            ids = tuple(range(math.prod(mesh.axis_sizes)))
            return cls(axes, ids, (0,) * len(ids), "abstract")
        devices = list(mesh.devices.flat)
        hosts = tuple(host_of(device) for device in devices)
        ids = tuple(device_id(device) for device in devices)
        return cls(axes, ids, hosts, _kind(devices[0]), devices[0].platform, str(target_made_for(devices[0]) or ""))

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Axis name to size, outermost first."""
        return dict(self.axes)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return len(self.device_ids)

    def coordinates(self, position: int) -> dict[str, int]:
        """Return the index along each axis of the device at a row-major position."""
        indices = {}
        for name, size in reversed(self.axes):
            position, indices[name] = divmod(position, size)
        return {name: indices[name] for name, _ in self.axes}

    def __str__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.axes)
        hosts = len(set(self.hosts))
        processes = len({number.process for number in self.device_ids if isinstance(number, DeviceId)})
        over = f" in {processes} processes" if processes > 1 else ""
        over += f" on {hosts} hosts" if hosts > 1 and hosts != processes else ""
        what = self.platform if self.kind == "attached" else self.kind
        of = f" of {self.target}" if self.target else ""
        return f"mesh {axes} ({self.num_devices} {what} {plural(self.num_devices, 'device')}{of}{over})"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "axes": dict(self.axes),
            "device_ids": list(self.device_ids),
            "hosts": list(self.hosts),
            "kind": self.kind,
            "platform": self.platform,
            **({"target": self.target} if self.target else {}),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MeshInfo:
        """Read what `to_dict` returned.

        Raises:
            MeshError: it does not describe a mesh; the message names the first thing that is wrong.
            KeyError: a key is missing.
        """
        axes, ids, hosts = tuple(data["axes"].items()), tuple(data["device_ids"]), tuple(data["hosts"])
        texts = {"kind": data["kind"], "platform": data["platform"], "target": data.get("target", "")}
        if odd := [f"axis {name!r} of size {size!r}" for name, size in axes if not is_count(size) or not size]:
            raise MeshError(f"{odd[0]}: a size must be a whole number above 0")
        if not all(map(is_count, (*ids, *hosts))) or len(set(ids)) < len(ids) or len(hosts) != len(ids):
            raise MeshError("device_ids and hosts must be whole numbers, one of each for every device, and no id twice")
        if odd := [name for name, text in texts.items() if not isinstance(text, str)]:
            raise MeshError(f"{odd[0]} is {texts[odd[0]]!r}, not text")
        if texts["kind"] not in get_args(Kind):
            raise MeshError(f"kind is {texts['kind']!r}, not one of {', '.join(get_args(Kind))}")
        return cls(axes, ids, hosts, **texts)


def is_count(value: Any) -> bool:
    """Return whether a value read from a file is an integer from 0 on; JSON's `true` is not one."""
    return type(value) is int and value >= 0


def _kind(device: jax.Device) -> Kind:
    """Return the kind of a device: a machine has one CPU device unless it simulates more."""
    if is_compile_only(device):
        return "compile-only"
    return "simulated" if device.platform == "cpu" and jax.local_device_count("cpu") > 1 else "attached"


def target_made_for(device: jax.Device) -> Target | None:
    """Return the target that a compile-only device belongs to."""
    if not is_compile_only(device):
        return None
    return next((target for target, devices in compile_only_devices.items() if device in devices), None)


def check_runnable(mesh: Mesh, what: str) -> None:
    """Raise if a mesh has compile-only devices.

    Args:
        mesh: the mesh.
        what: what cannot be done; the message begins with it.

    Raises:
        ProgramError: the devices are compile-only.
    """
    device = mesh.devices.flat[0]
    if not is_compile_only(device):
        return
    target = target_made_for(device) or device.device_kind
    raise ProgramError(
        f"{what} on this mesh: its {mesh.size} devices are compile-only ({target}): programs can be compiled for them, "
        "but not run\n"
        "  fix: inspect the program instead, with outlay.explain(program) or outlay.estimate(program)\n"
        f"  or run it on as many simulated devices: target='cpu:{mesh.size}'"
    )
