"""Build shardings on a real mesh: of a plan's leaves, of pencils, and with Auto axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from outlay.arrays.host_values import take_tree
from outlay.core.array_leaves import merge_objects, split_objects, used_up
from outlay.core.error_types import PlaceError
from outlay.core.paths import flatten_paths, map_with_paths, under
from outlay.core.quantities import counted, listed
from outlay.devices.mesh_info import MeshInfo, check_runnable, is_explicit
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.plan import Plan

ROWS = "rows"
"""The mesh axis over the devices that `on` selects."""

HOST = "pinned_host"
"""JAX's name for the memory of a device's host that the device itself can copy to and from."""


def shardings(plan: Plan, tree: Any, mesh: Mesh, *, root: str = "") -> Any:
    """Return the tree with each leaf replaced by its sharding under the plan.

    Args:
        plan: the plan, made for a tree of the same paths.
        tree: arrays or shapes; only its structure is read.
        mesh: the mesh that the plan was made for.
        root: the prefix of this tree's paths in the plan, such as `batch`.

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
    objects, arrays = split_objects(tree)
    return merge_objects(objects, map_with_paths(lambda path, _: sharding(by_path[under(root, path)], mesh), arrays))


def check_mesh(plan: Plan, mesh: Mesh) -> None:
    """Raise unless a plan was made for the axes and the devices of a mesh.

    A plan for an abstract mesh knows devices by position only, so it fits any mesh with its axes, unless it places
    leaves on some of the devices, and these have other ids here.

    Raises:
        PlaceError: the plan belongs to another mesh; the message says what differs, and how to plan for this one.
    """
    if not isinstance(mesh, Mesh):
        what = f"arrays cannot be placed: a {type(mesh).__name__} is not a mesh of devices"
        raise PlaceError(f"{what}\n  fix: pass the mesh from outlay.mesh(...)")
    here = MeshInfo.of(mesh)
    there = plan.mesh
    same_devices = here.device_ids == there.device_ids
    if there.kind == "abstract":
        same_devices |= all(leaf.device_ids == there.device_ids for leaf in plan)
    if here.axes == there.axes and same_devices:
        return
    what = f"the plan is for {there}, but this is {here}"
    if here.axes == there.axes:
        what += f"\n  devices {listed(there.device_ids, 12)} there, {listed(here.device_ids, 12)} here"
    raise PlaceError(
        f"{what}\n  fix: pass the mesh that the plan was made for, or plan for this one: layout.plan(tree, mesh)"
    )


def sharding(leaf: LeafPlan, mesh: Mesh) -> Sharding:
    """Return a leaf's sharding: over the whole mesh or the devices that `on` selects, in the memory that rules name."""
    # Only state stays on the host between calls; the program itself offloads values inside the step.
    memory = HOST if leaf.kind == "state" and leaf.stored == "host" else None
    # Rows of what `on` selects are split by no axis of the mesh, even where it selects all devices.
    has_rows = leaf.local_shape != leaf.shape and not any(leaf.spec)
    if len(leaf.device_ids) == mesh.size and not has_rows:
        return _named(mesh, leaf.spec, memory)
    chosen = [device for device in mesh.devices.flat if device.id in leaf.device_ids]
    if len(chosen) == 1:
        return SingleDeviceSharding(chosen[0], memory_kind=memory)
    spec = PartitionSpec() if leaf.local_shape == leaf.shape else PartitionSpec(ROWS)
    return _named(part_of(chosen), spec, memory)


def _named(mesh: Mesh, spec: PartitionSpec, memory: str | None) -> NamedSharding:
    named = NamedSharding(mesh, spec, memory_kind=memory)
    return named if memory in (None, named.memory_kind) else OnHost(mesh, spec)


class OnHost(NamedSharding):
    """A sharding in host memory for compile-only devices.

    JAX asks a device for its memories. A compile-only device names none, and JAX then silently drops the memory kind
    that was asked for. So this class reports it itself.
    """

    @property
    def memory_kind(self) -> str:
        """The memory kind of the host."""
        return HOST

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnHost) and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((HOST, super().__hash__()))


def part_of(devices: Sequence[jax.Device]) -> Mesh:
    """Return some devices of a mesh as a mesh of their own, over which rows are split."""
    return Mesh(np.array(devices), (ROWS,), axis_types=(AxisType.Auto,))


def pencil(shape: Sequence[int], mesh: Mesh, along: int) -> NamedSharding:
    """Return the sharding with dim `along` unsplit on every device; the mesh's axes split the other dims, in order.

    A transform along one dim after the other (an FFT, a tridiagonal solve) runs on pencils along that dim, and reaches
    the next pencils by exchanging blocks along one mesh axis only: `outlay.arrays.reshard(x, pencil(...))`.

    Args:
        shape: global shape, with one dim more than the mesh has axes.
        mesh: the mesh.
        along: the dim that is not split.

    Raises:
        PlaceError: the numbers of dims and axes do not match, there is no dim `along`, or dims are not divisible; all
            of these are listed.

    Example:
        >>> mesh = outlay.mesh(a=4, b=2)
        >>> [outlay.arrays.pencil((8, 8, 8), mesh, along).spec for along in (2, 1, 0)]
        [P('a', 'b', None), P('a', None, 'b'), P(None, 'a', 'b')]
    """
    rank, axes = len(shape), list(mesh.axis_names)
    if rank != len(axes) + 1:
        raise PlaceError(
            "a pencil leaves one dim unsplit and splits each of the others over one mesh axis: "
            f"the array {tuple(shape)} has {rank} dims, the mesh {len(axes)} axes {axes}\n"
            f"  fix: use a mesh of {rank - 1} axes"
        )
    if not -rank <= along < rank:
        raise PlaceError(
            f"along={along}, but the array {tuple(shape)} has dims 0 to {rank - 1}\n"
            f"  fix: name one of them, such as along={rank - 1}"
        )
    axes.insert(along % rank, None)
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    from outlay.arrays.check_arrays import check_fits

    check_fits([("", tuple(shape))], sharding)
    return sharding


def with_auto_types(x: jax.Array) -> jax.Array:
    """Return the same buffers on a mesh of Auto axes, where every operation has a sharding rule; nothing is copied.

    Args:
        x: an array with a `NamedSharding`.
    """
    assert isinstance(x.sharding, NamedSharding)
    return with_sharding_of(x, auto_sharding(x.sharding))


def with_sharding_of(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Return the same buffers under a sharding that differs at most in axis types; nothing is copied."""
    if x.sharding == sharding:
        return x
    pieces = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, pieces, dtype=x.dtype)


def auto_sharding(sharding: NamedSharding) -> NamedSharding:
    """Return the same sharding on a mesh whose axes are all Auto."""
    return NamedSharding(_auto_mesh(sharding.mesh), sharding.spec, memory_kind=sharding.memory_kind)


@functools.lru_cache(maxsize=64)
def _auto_mesh(mesh: Mesh) -> Mesh:
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def given_arrays(tree: Any) -> Any:
    """Return a tree of arrays that can be placed; raise for what is none, and for arrays that were given for good."""
    tree, problems = take_tree(tree)
    if problems := problems or used_up(tree, "place what the program returned"):
        raise PlaceError(f"{counted(len(problems), 'leaf', 'leaves')} cannot be placed:", problems)
    return tree


def target_shardings(
    tree: Any, where: Plan | Sharding, mesh: Mesh | None, *, part: bool = False, is_run: bool = True
) -> Any:
    """Return the tree with each leaf replaced by its new sharding; raise if a leaf cannot have it.

    Args:
        tree: arrays, or their shapes.
        where: where each leaf is to live.
        mesh: the mesh that a plan was made for.
        part: allow the tree to have only some of the plan's leaves.
        is_run: whether arrays are to be placed, which devices that are not here refuse.
    """
    from outlay.arrays.check_arrays import check_fits, check_same_leaves

    if isinstance(where, Sharding):
        check_fits([(path, np.shape(leaf)) for path, leaf in flatten_paths(tree)[0]], where, is_run=is_run)
        return jax.tree.map(lambda _: where, tree)
    if mesh is None:
        raise PlaceError(
            "a plan names devices by their ids, and there is no mesh to look them up in\n"
            "  fix: pass the mesh that it was made for too: (tree, plan, mesh), of a program "
            "(tree, program.plan, program.mesh)"
        )
    check_mesh(where, mesh)
    if is_run:
        check_runnable(mesh, "arrays cannot be put")
    check_same_leaves(tree, where.state, "the plan", part=part)
    return shardings(where, tree, mesh)


def is_elsewhere(leaf: Any, planned: LeafPlan, mesh: Mesh) -> bool:
    """Return whether an array does not live where the plan says; one that is not committed goes wherever it is used."""
    return (
        isinstance(leaf, jax.Array)
        and leaf.committed
        and not leaf.sharding.is_equivalent_to(sharding(planned, mesh), leaf.ndim)
    )


def mover(mesh: Mesh) -> Callable[[Any, jax.sharding.Sharding], Any]:
    """Return what gives a traced value a sharding on this mesh."""
    # On Explicit axes a constraint only asserts, and a reshard moves; on Auto axes a reshard is refused.
    return jax.reshard if is_explicit(mesh) else jax.lax.with_sharding_constraint
