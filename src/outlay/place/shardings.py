"""A plan's leaves as JAX shardings on a real mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from outlay.core.paths import join_parts, map_with_paths, split_path
from outlay.layout.plan import LeafPlan, Plan

ROWS = "rows"
"""The axis of the part of a mesh that `on` chose."""


def shardings(plan: Plan, tree: Any, mesh: Mesh, *, root: str = "") -> Any:
    """The tree with each leaf replaced by the sharding that the plan gives it.

    Args:
        plan: the plan, made for a tree of the same paths.
        tree: arrays or shapes; only its structure is read.
        mesh: the mesh that the plan was made for.
        root: what the plan puts before this tree's paths, such as `batch`.

    Raises:
        KeyError: the tree has a leaf that the plan lacks.

    Example:
        >>> mesh = outlay.mesh(data=8)
        >>> plan = outlay.fsdp(min_size=8).plan({"w": jnp.ones((16, 4))}, mesh)
        >>> shardings(plan, {"w": jnp.ones((16, 4))}, mesh)["w"].spec
        P('data', None)
    """
    by_path = {leaf.path: leaf for leaf in plan}
    return map_with_paths(lambda path, _: sharding(by_path[under(root, path)], mesh), tree)


def sharding(leaf: LeafPlan, mesh: Mesh) -> jax.sharding.Sharding:
    """One leaf's sharding: over the whole mesh, or on the devices that `on` chose."""
    if len(leaf.device_ids) == mesh.size:
        return NamedSharding(mesh, leaf.spec)
    chosen = [device for device in mesh.devices.flat if device.id in leaf.device_ids]
    if len(chosen) == 1:
        return SingleDeviceSharding(chosen[0])
    return NamedSharding(part_of(chosen), PartitionSpec() if leaf.local_shape == leaf.shape else PartitionSpec(ROWS))


def part_of(devices: Sequence[jax.Device]) -> Mesh:
    """Some devices of a mesh as a mesh of their own, over which rows are split."""
    return Mesh(np.array(devices), (ROWS,), axis_types=(jax.sharding.AxisType.Auto,))


def under(root: str, path: str) -> str:
    """A path below a root; either may be empty."""
    return join_parts(split_path(root) + split_path(path))
