"""A plan's leaves as JAX shardings on a real mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from outlay.core.error_types import PlaceError
from outlay.core.paths import join_parts, map_with_paths, split_path
from outlay.devices.info import MeshInfo
from outlay.layout.plan import LeafPlan, Plan

ROWS = "rows"
"""The axis of the part of a mesh that `on` chose."""

HOST = "pinned_host"
"""JAX's name for the memory of a device's host that the device itself can copy to and from."""


def shardings(plan: Plan, tree: Any, mesh: Mesh, *, root: str = "") -> Any:
    """The tree with each leaf replaced by the sharding that the plan gives it.

    Args:
        plan: the plan, made for a tree of the same paths.
        tree: arrays or shapes; only its structure is read.
        mesh: the mesh that the plan was made for.
        root: what the plan puts before this tree's paths, such as `batch`.

    Raises:
        KeyError: the tree has a leaf that the plan lacks.
        PlaceError: the plan was made for other axes or devices than this mesh has.

    Example:
        >>> mesh = outlay.mesh(data=8)
        >>> plan = outlay.fsdp(min_size=8).plan({"w": jnp.ones((16, 4))}, mesh)
        >>> shardings(plan, {"w": jnp.ones((16, 4))}, mesh)["w"].spec
        P('data', None)
    """
    check_mesh(plan, mesh)
    by_path = {leaf.path: leaf for leaf in plan}
    return map_with_paths(lambda path, _: sharding(by_path[under(root, path)], mesh), tree)


def check_mesh(plan: Plan, mesh: Mesh) -> None:
    """Raise unless a plan was made for the axes and the devices of a mesh.

    A plan for an abstract mesh knows devices by position only, so it fits any mesh of its axes, unless it keeps leaves
    on some of the devices and those have other ids here.

    Raises:
        PlaceError: the plan is of another mesh: what differs, and how to plan for this one.
    """
    if not isinstance(mesh, Mesh):
        what = f"a {type(mesh).__name__} is no mesh of devices"
        raise PlaceError(f"arrays cannot be placed: {what}\n  fix: give the mesh from outlay.mesh(...)")
    here = MeshInfo.of(mesh)
    there = plan.mesh
    same_devices = here.device_ids == there.device_ids
    if there.kind == "abstract":
        same_devices |= all(leaf.device_ids == there.device_ids for leaf in plan)
    if here.axes == there.axes and same_devices:
        return
    what = f"the plan is for {there}, and this is {here}"
    if here.axes == there.axes:
        what += f"\n  devices {_ids(there.device_ids)} there, {_ids(here.device_ids)} here"
    raise PlaceError(
        f"{what}\n  fix: give the mesh that the plan was made for, or plan for this one: layout.plan(tree, mesh)"
    )


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:12])) + (f" and {len(ids) - 12} more" if len(ids) > 12 else "")


def sharding(leaf: LeafPlan, mesh: Mesh) -> jax.sharding.Sharding:
    """One leaf's sharding: over the whole mesh, or on the devices that `on` chose; of the state, in its memory."""
    memory = HOST if leaf.kind == "state" and leaf.stored == "host" else None
    if len(leaf.device_ids) == mesh.size:
        return _named(mesh, leaf.spec, memory)
    chosen = [device for device in mesh.devices.flat if device.id in leaf.device_ids]
    if len(chosen) == 1:
        return SingleDeviceSharding(chosen[0], memory_kind=memory)
    spec = PartitionSpec() if leaf.local_shape == leaf.shape else PartitionSpec(ROWS)
    return _named(part_of(chosen), spec, memory)


def _named(mesh: Mesh, spec: PartitionSpec, memory: str | None) -> NamedSharding:
    found = NamedSharding(mesh, spec, memory_kind=memory)
    return found if found.memory_kind == memory or memory is None else OnHost(mesh, spec)


class OnHost(NamedSharding):
    """In the memory of the host, of devices that are only compiled for.

    JAX asks a device which memories it reaches. Such a device names none, and JAX then forgets what it was asked for.
    """

    @property
    def memory_kind(self) -> str:
        """That of the host."""
        return HOST

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnHost) and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((HOST, super().__hash__()))


def part_of(devices: Sequence[jax.Device]) -> Mesh:
    """Some devices of a mesh as a mesh of their own, over which rows are split."""
    return Mesh(np.array(devices), (ROWS,), axis_types=(jax.sharding.AxisType.Auto,))


def under(root: str, path: str) -> str:
    """A path below a root; either may be empty."""
    return join_parts(split_path(root) + split_path(path))
