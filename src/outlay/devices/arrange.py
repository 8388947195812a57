"""Decide which device goes where in a mesh over several hosts. Pure: devices are positions in a list."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from outlay.devices.mesh_spec import MeshSpec


def group_by_host(hosts: Sequence[int]) -> list[list[int]]:
    """Group the positions of devices by host, hosts in order of their first device; all groups are equally large.

    Where hosts have different numbers of devices, as where SLURM puts three tasks on one node and one on the next, each
    host is several groups of neighbours: axes that stay inside a group then stay inside a host.

    Args:
        hosts: the host of each device.

    >>> group_by_host([0, 0, 1, 1])
    [[0, 1], [2, 3]]
    >>> group_by_host([0, 0, 0, 0, 1, 1])
    [[0, 1], [2, 3], [4, 5]]
    """
    by_host: dict[int, list[int]] = {}
    for position, host in enumerate(hosts):
        by_host.setdefault(host, []).append(position)
    size = math.gcd(*map(len, by_host.values()))
    return [there[start : start + size] for there in by_host.values() for start in range(0, len(there), size)]


def unequal_hosts(hosts: Sequence[int]) -> str:
    """Return in words how many devices each host has where the numbers differ; else an empty text.

    >>> unequal_hosts([0, 0, 0, 1])
    '3 on host 0, 1 on host 1'
    """
    counts = collections.Counter(hosts)
    return ", ".join(f"{num} on host {host}" for host, num in counts.items()) if len(set(counts.values())) > 1 else ""


def arrange(spec: MeshSpec, groups: Sequence[Sequence[int]], torus: Sequence[int] = ()) -> np.ndarray:
    """Arrange positions of devices in an array with one dim per axis, in the order of the spec.

    Axes that may cross hosts are split over hosts, outermost first. Their remaining parts, then the axes that stay
    inside a host, run over the devices of a host, so that neighbours along an inside axis are neighbours on the host.

    Args:
        spec: the axes, resolved for these devices and hosts.
        groups: positions of the devices of each host, the same number on each.
        torus: for TPUs, where a group is a slice, the sizes of its torus; positions are then row-major over its dims.

    >>> arrange(MeshSpec({"model": 2, "data": 4}), [[0, 1, 2, 3], [4, 5, 6, 7]]).tolist()
    [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    positions = np.asarray(groups)
    sizes = spec.axis_sizes
    if len(groups) == 1:
        return _along(torus, positions, list(sizes.values())).reshape(tuple(sizes.values()))
    over_hosts = _split_over_hosts(sizes, spec.crossing, len(groups))
    # (host part of each crossing axis) x (their parts inside a host, 1 for most) x (inside axes)
    order = [*spec.crossing, *(name for name in sizes if name not in spec.crossing)]
    in_host = [sizes[name] // over_hosts.get(name, 1) for name in order]
    grid = _along(torus, positions, in_host).reshape(*over_hosts.values(), *in_host)
    host_dim = {name: dim for dim, name in enumerate(over_hosts)}
    local_dim = {name: len(over_hosts) + dim for dim, name in enumerate(order)}
    dims = [dim for name in sizes for dim in ([host_dim[name]] if name in host_dim else []) + [local_dim[name]]]
    return grid.transpose(dims).reshape(tuple(sizes.values()))


def _along(torus: Sequence[int], positions: np.ndarray, in_group: Sequence[int]) -> np.ndarray:
    """Return the positions of each group in the order in which its axes run over the torus."""
    return positions[:, along_torus(torus, in_group).ravel()] if torus else positions


def _split_over_hosts(sizes: dict[str, int], crossing: Sequence[str], num_hosts: int) -> dict[str, int]:
    """Return how many hosts each crossing axis spans.

    Taking the greatest common divisor from axis to axis uses up all hosts: what remains of an axis has no factor in
    common with the hosts that remain, so it divides the devices inside a host.
    """
    spans, left = {}, num_hosts
    for name in crossing:
        spans[name] = math.gcd(sizes[name], left)
        left //= spans[name]
    return spans


def along_torus(torus: Sequence[int], sizes: Sequence[int]) -> np.ndarray:
    """Lay mesh axes over a torus: return, in an array of the axes' sizes, the row-major position of each chip.

    Each axis gets whole dims of the torus where the sizes allow it. Otherwise the
    axes, outermost first, share the dims in order: an axis is then part of a dim, or runs from one dim into the next.

    Args:
        torus: size of each dim of the torus.
        sizes: size of each mesh axis, outermost first; they multiply to as many chips.

    >>> along_torus((2, 4, 2), (4, 4)).tolist()  # the first axis is dims 0 and 2, the second is dim 1
    [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    """
    chips = np.arange(math.prod(torus)).reshape(tuple(torus))
    # Neighbours along an axis are then neighbours on the torus.
    chosen = next(_whole_dims(torus, tuple(range(len(torus))), sizes), None)
    if chosen is not None:
        chips = chips.transpose([dim for dims in chosen for dim in dims])
    return chips.reshape(tuple(sizes))


def _whole_dims(torus: Sequence[int], dims: Sequence[int], sizes: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """Yield every way to give each axis whole dims, those with adjacent dims for the innermost axis first."""
    if not sizes:
        if not dims:
            yield []
        return
    *outer, size = sizes
    fits = [some for some in _subsets(dims) if math.prod(torus[dim] for dim in some) == size]
    for some in sorted(fits, key=lambda some: (_gaps(some), tuple(-dim for dim in reversed(some)))):
        for rest in _whole_dims(torus, [dim for dim in dims if dim not in some], outer):
            yield [*rest, some]


def _subsets(dims: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(dims) + 1):
        yield from itertools.combinations(dims, count)


def _gaps(dims: Sequence[int]) -> int:
    return dims[-1] - dims[0] + 1 - len(dims) if dims else 0
