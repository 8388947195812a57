"""Sums over every module of a tree, for tables that fold."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outlay.core.paths import join_parts, split_path
from outlay.report.leaf import LeafFacts


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

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "path": self.path,
            "parent": self.parent,
            "name": self.name,
            "num_leaves": self.num_leaves,
            "bytes_total": self.bytes_total,
            "bytes_per_device": self.bytes_per_device,
        }


def modules(leaves: Sequence[LeafFacts]) -> tuple[ModuleFacts, ...]:
    """Every proper prefix of the leaves' paths, in the order of the tree."""
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
    """Bytes of the leaves that each device holds, by device id."""
    # Most leaves live on the same devices: add up first, then spread.
    by_devices: collections.Counter[tuple[int, ...]] = collections.Counter()
    for leaf in leaves:
        by_devices[leaf.device_ids] += leaf.bytes_per_device
    held: collections.Counter[int] = collections.Counter()
    for ids, count in by_devices.items():
        for device in ids:
            held[device] += count
    return dict(held)
