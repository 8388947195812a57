"""How devices are named in texts, alone and in lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outlay.core.quantities import plural
from outlay.devices.mesh_info import DeviceId

_MAX_RUNS = 4
"""Ranges of ids that a text shows; of more, the middle is left out."""


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
    if ids and ids[-1] - ids[0] + 1 == len(ids) == len(set(ids)):  # one run, as of most meshes
        return _format_run(ids)
    step = ids[1] - ids[0] if len(ids) > 1 else 1
    if len(ids) > _MAX_RUNS and step > 1 and ids == [ids[0] + step * number for number in range(len(ids))]:
        return f"{ids[0]}-{ids[-1]} by {step}"
    from outlay.core.equal_layers import consecutive

    return _shortened([_format_run(run) for run in consecutive(ids)], len(ids))


def _shortened(runs: Sequence[str], count: int) -> str:
    if len(runs) > _MAX_RUNS:
        return f"{runs[0]},{runs[1]},..,{runs[-1]} ({count})"
    return ",".join(runs)


def _by_process(ids: Iterable[DeviceId]) -> list[str]:
    """Write ranges of processes with the ranges of their devices; processes with the same devices share an entry."""
    from outlay.core.equal_layers import consecutive

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
