"""Fetch the state of a program as NumPy arrays, whichever processes have its leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from outlay.arrays.gather_scatter import broadcast, gather, gather_among_holders
from outlay.core.paths import map_with_paths
from outlay.devices.mesh_info import processes_of
from outlay.layout.plan import Plan


def gather_state(plan: Plan, mesh: Mesh, device_groups: Sequence[Any], crop: Callable[[Any], Any], state: Any) -> Any:
    """Fetch a state, or a part of one; every process calls it.

    Of a state in mode placed, a process has only the leaves of its own parts. Whether others lack one of its leaves,
    only the plan says.

    Args:
        plan: the plan of the program.
        mesh: its mesh.
        device_groups: its groups of devices, in mode placed.
        crop: removes padded rows.
        state: the state.
    """
    if not (device_groups and processes_of(mesh)):
        return crop(gather(state))
    owners = {device.id: device.process_index for device in mesh.devices.flat}

    def whole(path: str, leaf: jax.Array) -> np.ndarray:
        owner, here = owners[plan[path].device_ids[0]], jax.process_index()
        value = gather_among_holders(leaf, owner == here) if leaf.sharding.addressable_devices else None
        return broadcast(value if owner == here else None, owner)

    return crop(map_with_paths(whole, state))
