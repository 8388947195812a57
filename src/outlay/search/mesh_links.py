"""Times of collectives over the axes of a mesh, as arithmetic asks for them many times."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import numpy as np

from outlay.analysis.cost.links import collective_seconds
from outlay.analysis.hlo.hlo_collectives import CollectiveKind
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target


def size_of(mesh: MeshInfo, axes: Iterable[str]) -> int:
    """Return how many devices some axes of a mesh have together."""
    return math.prod(mesh.axis_sizes[axis] for axis in axes)


class MeshLinks:
    """Times of collectives over the axes of one mesh.

    Args:
        mesh: the mesh.
        target: the hardware, of which it is one.
    """

    def __init__(self, mesh: MeshInfo, target: Target) -> None:
        self.mesh = mesh
        self._target = target
        self._groups = functools.cache(self._groups_over)
        self._seconds = functools.cache(self._seconds_of)

    def seconds(self, kind: CollectiveKind, payload: float, axes: tuple[str, ...]) -> float:
        """Return the time of one collective over some axes."""
        if size_of(self.mesh, axes) == 1:
            return 0.0
        return self._seconds(kind, payload, axes)

    def _seconds_of(self, kind: CollectiveKind, payload: float, axes: tuple[str, ...]) -> float:
        return collective_seconds(kind, payload, self._groups(axes), self._target)

    def _groups_over(self, axes: tuple[str, ...]) -> list[list[int]]:
        """Return the groups of devices along these axes; only the first is priced, since all are alike."""
        names = [name for name, _ in self.mesh.axes]
        grid = np.array(self.mesh.device_ids).reshape([size for _, size in self.mesh.axes])
        at = tuple(slice(None) if name in axes else 0 for name in names)
        return [grid[at].flatten().tolist()]
