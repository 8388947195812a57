"""The facts of `outlay.show`: leaves, sums by module and by device, and totals, as plain data."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from outlay.core.one_line import OneLine
from outlay.core.paths import join_parts, split_path
from outlay.devices.mesh_info import MeshInfo
from outlay.report.array_blocks import Blocks
from outlay.report.leaf import LeafFacts

Subject = Literal["array", "tree", "plan", "program"]


MANY_DEVICES = 32
"""Above this number, devices are drawn small, over the whole width of the page."""


@dataclass(frozen=True)
class DeviceFacts:
    """One device.

    Attributes:
        id: JAX's id of the device; on an abstract mesh its position.
        host: the host it is on.
        num_bytes: bytes of state that it holds.
    """

    id: int
    host: int
    num_bytes: int


@dataclass(frozen=True)
class Count:
    """How many leaves of the state are laid out in the same way.

    Attributes:
        in_words: the way, such as `replicated 6 times`.
        num_leaves: how many leaves.
        bytes_total: their bytes, counted once.
    """

    in_words: str
    num_leaves: int
    bytes_total: int


@dataclass(frozen=True)
class Totals(OneLine):
    """The state in numbers.

    Attributes:
        num_leaves: leaves of the state.
        bytes_total: their bytes, counted once.
        bytes_least: bytes on the device that holds the least.
        bytes_most: bytes on the device that holds the most.
        replication: bytes on all devices over the bytes of the arrays that are on devices; 1.0 means no copies.
        counts: the leaves by the way they are laid out, largest first.
    """

    num_leaves: int
    bytes_total: int
    bytes_least: int
    bytes_most: int
    replication: float
    counts: tuple[Count, ...]


@dataclass(frozen=True)
class HeatRow(OneLine):
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
class Heat(OneLine):
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


@dataclass(frozen=True)
class Facts(OneLine):
    """Everything in one report.

    Attributes:
        subject: what was shown.
        meshes: the meshes that leaves live on, in the order of the leaves.
        devices: the devices of the meshes and of the leaves, in order.
        device_kind: `attached`, `simulated`, `abstract`, or empty if no device holds anything.
        leaves: the leaves in the order of the tree.
        modules: sums over the modules of the tree.
        totals: the state in numbers.
        heat: bytes by device and top-level module.
        notes: what is worth knowing, in words with numbers.
    """

    subject: Subject
    meshes: tuple[MeshInfo, ...]
    devices: tuple[DeviceFacts, ...]
    device_kind: str
    leaves: tuple[LeafFacts, ...]
    modules: tuple[ModuleFacts, ...]
    totals: Totals
    heat: Heat
    notes: tuple[str, ...]

    @property
    def shared_blocks(self) -> tuple[Blocks, ...]:
        """The distinct block pictures: leaves with the same shape and placement share one."""
        return tuple(dict.fromkeys(leaf.blocks for leaf in self.leaves if leaf.blocks is not None))

    @property
    def num_hosts(self) -> int:
        """The number of hosts of the devices."""
        return len({device.host for device in self.devices})

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        blocks = {block: number for number, block in enumerate(self.shared_blocks)}
        everywhere = [device.id for device in self.devices]
        leaves = [
            {
                **leaf.to_dict(),
                # Most leaves live on all devices: thousands of ids for each would swell the file.
                "device_ids": "all" if everywhere and sorted(leaf.device_ids) == everywhere else list(leaf.device_ids),
                "mesh": self.meshes.index(leaf.mesh) if leaf.mesh and leaf.on_mesh else None,
                "blocks": None if leaf.blocks is None else blocks[leaf.blocks],
            }
            for leaf in self.leaves
        ]
        return {
            "subject": self.subject,
            "device_kind": self.device_kind,
            "meshes": [mesh.to_dict() for mesh in self.meshes],
            "devices": [{"id": d.id, "host": d.host, "bytes": d.num_bytes} for d in self.devices],
            "totals": asdict(self.totals),
            "notes": list(self.notes),
            "leaves": leaves,
            "modules": [asdict(module) for module in self.modules],
            "heat": self.heat.to_dict(),
            "blocks": [block.to_dict() for block in blocks],
        }


@dataclass(frozen=True)
class ModuleFacts:
    """All leaves below one path.

    Attributes:
        path: dotted path of the module.
        parent: path of the module around it, empty at the top.
        name: the last part of the path.
        num_leaves: leaves below it.
        bytes_total: their bytes, counted once.
        bytes_per_device: the most that one device holds of them.
    """

    path: str
    parent: str
    name: str
    num_leaves: int
    bytes_total: int
    bytes_per_device: int


def modules(leaves: Sequence[LeafFacts]) -> tuple[ModuleFacts, ...]:
    """Return every proper prefix of the leaves' paths, in the order of the tree."""
    below: dict[tuple[str, ...], list[LeafFacts]] = {}
    for leaf in leaves:
        parts = split_path(leaf.path)
        for length in range(1, len(parts)):
            below.setdefault(parts[:length], []).append(leaf)
    return tuple(
        ModuleFacts(
            path=join_parts(parts),
            parent=join_parts(parts[:-1]),
            name=join_parts(parts[-1:]),
            num_leaves=len(members),
            bytes_total=sum(leaf.bytes_total for leaf in members),
            bytes_per_device=max(bytes_by_device(members).values(), default=0),
        )
        for parts, members in below.items()
    )


def bytes_by_device(leaves: Sequence[LeafFacts]) -> dict[int, int]:
    """Return the bytes of the leaves that each device holds, by device id."""
    # Most leaves live on the same devices: add up by device set first, then by device.
    by_devices: collections.Counter[tuple[int, ...]] = collections.Counter()
    for leaf in leaves:
        by_devices[leaf.device_ids] += leaf.bytes_per_device
    held: collections.Counter[int] = collections.Counter()
    for ids, count in by_devices.items():
        for device in ids:
            held[device] += count
    return dict(held)


# More columns would not fit a page; the smaller modules are summed up in one.
_MAX_MODULES = 10
# Up to this many devices each has its own row; beyond, equal neighbours share one.
_MAX_SINGLE_DEVICES = 16


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
