"""Sum bytes by device and top-level module: where the memory goes, and whether it is balanced."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outlay.core.paths import join_parts, split_path
from outlay.report.leaf import LeafFacts

# More columns would not fit a page; the smaller modules are summed up in one.
_MAX_MODULES = 10
# Up to this many devices each has its own row; beyond, equal neighbours share one.
_MAX_SINGLE_DEVICES = 16


@dataclass(frozen=True)
class HeatRow:
    """The bytes of one device, or of several neighbours with equal bytes for every module.

    Attributes:
        hosts: the hosts of the devices.
        device_ids: the devices.
        num_bytes: bytes that each of the devices holds, one entry per module.
    """

    hosts: tuple[int, ...]
    device_ids: tuple[int, ...]
    num_bytes: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of all modules on each of the devices."""
        return sum(self.num_bytes)


@dataclass(frozen=True)
class Heat:
    """Bytes of state by device and module.

    Attributes:
        modules: the top-level modules, below the parts that all paths share.
        rows: the devices in order.
    """

    modules: tuple[str, ...]
    rows: tuple[HeatRow, ...]

    @property
    def largest(self) -> int:
        """The largest entry, which gets the hottest colour."""
        return max((count for row in self.rows for count in row.num_bytes), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        rows = [
            {
                "hosts": list(row.hosts),
                "device_ids": list(row.device_ids),
                "bytes": list(row.num_bytes),
                "total": row.total,
            }
            for row in self.rows
        ]
        return {"modules": list(self.modules), "largest": self.largest, "rows": rows}


def heat(leaves: Sequence[LeafFacts], hosts: dict[int, int]) -> Heat:
    """Sum up what every device holds of every module.

    Args:
        leaves: the leaves to count; those on no device are left out.
        hosts: the host of each device id, in the order of the rows.
    """
    held = _by_module([leaf for leaf in leaves if leaf.device_ids])
    names = sorted(held, key=lambda name: -sum(held[name].values()))
    shown = set(names if len(names) <= _MAX_MODULES else names[: _MAX_MODULES - 1])
    modules = [name for name in held if name in shown]
    columns = [held[name] for name in modules]
    if len(shown) < len(held):
        others: collections.Counter[int] = collections.Counter()
        for name in held:
            if name not in shown:
                others.update(held[name])
        modules.append(f"{len(held) - len(shown)} others")
        columns.append(others)
    rows = [HeatRow((host,), (device,), tuple(c[device] for c in columns)) for device, host in hosts.items()]
    if len(rows) > _MAX_SINGLE_DEVICES:
        rows = _merge_neighbours(rows)
    return Heat(tuple(modules), tuple(rows))


def _by_module(leaves: Sequence[LeafFacts]) -> dict[str, collections.Counter[int]]:
    parts = [split_path(leaf.path) for leaf in leaves]
    shared = _num_shared(parts)
    held: dict[str, collections.Counter[int]] = {}
    for leaf, leaf_parts in zip(leaves, parts, strict=True):
        counter = held.setdefault(join_parts(leaf_parts[: shared + 1]), collections.Counter())
        for device in leaf.device_ids:
            counter[device] += leaf.bytes_per_device
    return held


def _num_shared(paths: Sequence[tuple[str, ...]]) -> int:
    """Return how many leading parts all paths share; the last part of a path names a leaf, not a module."""
    shared = 0
    while paths and all(len(parts) > shared + 1 and parts[shared] == paths[0][shared] for parts in paths):
        shared += 1
    return shared


def _merge_neighbours(rows: Sequence[HeatRow]) -> list[HeatRow]:
    merged: list[HeatRow] = []
    for row in rows:
        if merged and merged[-1].num_bytes == row.num_bytes:
            hosts = tuple(dict.fromkeys(merged[-1].hosts + row.hosts))
            merged[-1] = HeatRow(hosts, merged[-1].device_ids + row.device_ids, row.num_bytes)
        else:
            merged.append(row)
    return merged
