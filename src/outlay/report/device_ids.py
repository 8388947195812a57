"""Device ids in few words: ranges, strides, and a count where even those would be long.

In a job of several processes a device is written `process:index`, and a range of them `0-3:0-7`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outlay.meshes.device_id import DeviceId

_MAX_RUNS = 4


def format_ids(ids: Sequence[int]) -> str:
    """Ids as ranges; many ranges are cut in the middle, with the count said.

    >>> format_ids([0, 1]), format_ids(range(32)), format_ids(range(0, 256, 8))
    ('0,1', '0-31', '0-248 by 8')
    >>> format_ids([16 * i + j for i in range(16) for j in range(8)])
    '0-7,16-23,..,240-247 (128)'
    """
    ids = sorted(ids)
    if named := [device for device in ids if isinstance(device, DeviceId)]:
        return _shortened(_by_process(named), len(ids))
    step = ids[1] - ids[0] if len(ids) > 1 else 1
    if len(ids) > _MAX_RUNS and step > 1 and ids == list(range(ids[0], ids[-1] + 1, step)):
        return f"{ids[0]}-{ids[-1]} by {step}"
    return _shortened([_format_run(run) for run in _runs(ids)], len(ids))


def _shortened(runs: Sequence[str], count: int) -> str:
    if len(runs) > _MAX_RUNS:
        return f"{runs[0]},{runs[1]},..,{runs[-1]} ({count})"
    return ",".join(runs)


def _by_process(ids: Iterable[DeviceId]) -> list[str]:
    """Ranges of processes with the ranges of their devices; processes that have the same ones share an entry."""
    held: dict[int, list[int]] = {}
    for device in ids:
        held.setdefault(device.process, []).append(device.index)
    alike: dict[tuple[int, ...], list[int]] = {}
    for process, places in held.items():
        alike.setdefault(tuple(places), []).append(process)
    return [
        f"{_span(processes)}:{_span(places)}"
        for indices, sharing in alike.items()
        for processes in _runs(sorted(sharing))
        for places in _runs(indices)
    ]


def _span(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


def format_devices(ids: Sequence[int]) -> str:
    """Ids with their noun.

    >>> format_devices([3]), format_devices([0, 1, 2, 3])
    ('device 3', 'devices 0-3')
    """
    return f"device{'s' if len(ids) != 1 else ''} {format_ids(ids)}"


def _runs(ids: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for device in ids:
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return runs


def _format_run(run: Sequence[int]) -> str:
    if len(run) <= 2:
        return ",".join(map(str, run))
    return f"{run[0]}-{run[-1]}"
