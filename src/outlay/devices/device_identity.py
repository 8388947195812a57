"""How devices are named, alone and in lists, and which host a device belongs to."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from outlay.core.equal_layers import consecutive
from outlay.core.jax_compat import is_compile_only
from outlay.core.quantities import plural

_MAX_RUNS = 4
"""Ranges of ids that a text shows; of more, the middle is left out."""

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


def format_ids(ids: Sequence[int]) -> str:
    """Write ids as ranges or a stride; of many ranges the middle is left out, and the ids are counted.

    In a job of several processes a device is written `process:index`, and a range of them `0-3:0-7`.

    >>> format_ids([0, 1]), format_ids(range(32)), format_ids(range(0, 256, 8))
    ('0,1', '0-31', '0-248 by 8')
    >>> format_ids([16 * i + j for i in range(16) for j in range(8)])
    '0-7,16-23,..,240-247 (128)'
    """
    ids = sorted(ids)
    if named := [device for device in ids if isinstance(device, DeviceId)]:
        return _shortened(_by_process(named), len(ids))
    if ids and ids == list(range(ids[0], ids[-1] + 1)):  # one run, as of most meshes
        return _format_run(ids)
    step = ids[1] - ids[0] if len(ids) > 1 else 1
    if len(ids) > _MAX_RUNS and step > 1 and ids == list(range(ids[0], ids[-1] + 1, step)):
        return f"{ids[0]}-{ids[-1]} by {step}"
    return _shortened([_format_run(run) for run in consecutive(ids)], len(ids))


def _shortened(runs: Sequence[str], count: int) -> str:
    if len(runs) > _MAX_RUNS:
        return f"{runs[0]},{runs[1]},..,{runs[-1]} ({count})"
    return ",".join(runs)


def _by_process(ids: Iterable[DeviceId]) -> list[str]:
    """Write ranges of processes with the ranges of their devices; processes with the same devices share an entry."""
    indices_of: dict[int, list[int]] = {}
    for device in ids:
        indices_of.setdefault(device.process, []).append(device.index)
    processes_with: dict[tuple[int, ...], list[int]] = {}
    for process, indices in indices_of.items():
        processes_with.setdefault(tuple(indices), []).append(process)
    return [
        f"{_span(process_run)}:{_span(index_run)}"
        for indices, processes in processes_with.items()
        for process_run in consecutive(sorted(processes))
        for index_run in consecutive(indices)
    ]


def _span(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def format_devices(ids: Sequence[int]) -> str:
    """Write ids with their noun.

    >>> format_devices([3]), format_devices([0, 1, 2, 3])
    ('device 3', 'devices 0-3')
    """
    return f"{plural(len(ids), 'device')} {format_ids(ids)}"


def _format_run(run: Sequence[int]) -> str:
    if len(run) <= 2:
        return ",".join(map(str, run))
    return f"{run[0]}-{run[-1]}"


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
