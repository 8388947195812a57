"""Where the devices of a program stand: their host or slice, and their place on a TPU's torus."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from outlay.devices.compile_only import target_devices
from outlay.devices.info import MeshInfo
from outlay.devices.target import Target


@dataclass(frozen=True)
class Place:
    """Where a device stands.

    Attributes:
        island: the host of a GPU, the slice of a TPU: what is joined by the fast links.
        coords: the place on the torus of a TPU; empty for other devices.
    """

    island: int
    coords: tuple[int, ...] = ()


def places_of(target: Target, mesh: MeshInfo | None = None) -> tuple[Place, ...]:
    """The place of every device of a program, in the program's order.

    Args:
        target: the hardware.
        mesh: the program's mesh; one that is not of this target, or none, counts as in the order of the target, where
            neighbours stand together.
    """
    if mesh is not None and mesh.target == str(target):
        if target.hardware.kind == "tpu":
            return _on_torus(target, mesh)
        return tuple(Place(host) for host in mesh.hosts)
    if target.hardware.kind != "tpu":
        return tuple(Place(position // target.shape[-1]) for position in range(target.num_devices))
    chips = [tuple(int(i) for i in np.unravel_index(k, target.shape)) for k in range(math.prod(target.shape))]
    coords = [chip for chip in chips for _ in range(target.hardware.devices_per_chip)]
    return tuple(Place(island, place) for island in range(target.num_slices) for place in coords)


def _on_torus(target: Target, mesh: MeshInfo) -> tuple[Place, ...]:
    devices = {device.id: device for device in target_devices(target)}
    found = [devices[number] for number in mesh.device_ids]
    return tuple(Place(getattr(device, "slice_index", 0) or 0, tuple(device.coords)) for device in found)
