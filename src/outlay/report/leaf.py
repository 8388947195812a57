"""Where one leaf lives: the facts of an array, of a shape with a sharding, or of a leaf of a plan."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding

from outlay.core.array_leaves import num_bytes
from outlay.core.error_types import Problem
from outlay.core.one_line import OneLine
from outlay.devices.device_names import format_devices
from outlay.devices.mesh_info import MeshInfo, device_id
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import Dims, dims_spec, spec_dims
from outlay.layout.plan import spec_text
from outlay.render.report import fields_as_json
from outlay.report.array_blocks import Blocks, blocks_of_map, blocks_on_mesh, planned_blocks


@dataclass(frozen=True, kw_only=True)
class LeafFacts(OneLine):
    """One array and where it lives.

    Attributes:
        path: dotted path; empty for an array that is not part of a tree.
        kind: `state`, `batch` or `intermediate`.
        shape: global shape.
        dtype: name of the dtype.
        local_shape: shape of one device's block.
        dims: the mesh axes that split each dim.
        place: the spec as code, or `device 3`, `host`, `nowhere`.
        in_words: the same for newcomers, such as `replicated 6 times`.
        bytes_total: bytes of the array, counted once.
        bytes_per_device: bytes that each of its devices holds.
        num_copies: the number of devices that hold the same block.
        device_ids: the devices that hold it.
        rule: the deciding rule, from a plan.
        reason: the reason, from a plan; else what is special about the array.
        find_blocks: returns `blocks`; None if no device holds any.
        mesh: the devices with their hosts; None if no device holds any.
        on_mesh: whether `mesh` is the user's, and not made from the devices of a sharding without one.
    """

    path: str
    kind: str = "state"
    shape: tuple[int, ...]
    dtype: str
    local_shape: tuple[int, ...]
    dims: Dims
    place: str
    in_words: str
    bytes_total: int
    bytes_per_device: int = 0
    num_copies: int = 0
    device_ids: tuple[int, ...] = ()
    rule: str = ""
    reason: str = ""
    find_blocks: Callable[[], Blocks] | None = field(default=None, repr=False, compare=False)
    mesh: MeshInfo | None = None
    on_mesh: bool = False

    @functools.cached_property
    def blocks(self) -> Blocks | None:
        """Which device holds which slice; None if no device holds any. A table has no need of it, a picture has."""
        return None if self.find_blocks is None else self.find_blocks()

    @property
    def rules(self) -> tuple[str, ...]:
        """The deciding rules, each with its number."""
        return tuple(self.rule.split("; ")) if self.rule else ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data, without blocks and mesh, which many leaves share."""
        return fields_as_json(self, "device_ids", "find_blocks", "mesh", "on_mesh")


def planned_leaf(leaf: LeafPlan, mesh: MeshInfo) -> LeafFacts:
    """Return the facts of a leaf of a plan."""
    if leaf.device_ids == mesh.device_ids:
        place = spec_text(leaf.spec)
    else:
        place = format_devices(leaf.device_ids) + ("" if leaf.local_shape == leaf.shape else ", by rows")
    holders = frozenset(leaf.device_ids)
    device_ids = tuple(device for device in mesh.device_ids if device in holders)
    return LeafFacts(
        path=leaf.path,
        kind=leaf.kind,
        shape=leaf.shape,
        dtype=leaf.dtype,
        local_shape=leaf.local_shape,
        dims=leaf.dims,
        place=place,
        in_words=_in_words(len(device_ids) // leaf.num_copies, leaf.num_copies, device_ids),
        bytes_total=leaf.bytes_total,
        bytes_per_device=leaf.bytes_per_device,
        num_copies=leaf.num_copies,
        device_ids=device_ids,
        rule=leaf.rule,
        reason=leaf.reason,
        find_blocks=functools.partial(planned_blocks, leaf, mesh),
        mesh=mesh,
        on_mesh=True,
    )


def is_array(leaf: Any) -> bool:
    """Return whether a leaf has a place to show: arrays, shapes of arrays, and numbers."""
    # JAX counts a tracer as an array, but it lives nowhere yet.
    if isinstance(leaf, Tracer):
        return False
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic | bool | int | float | complex)


def array_leaf(path: str, leaf: Any) -> LeafFacts | Problem:
    """Return the facts of an array, or what is wrong with its sharding."""
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return _host_leaf(path, np.asarray(leaf))
    shape, dtype, sharding = tuple(leaf.shape), str(leaf.dtype), leaf.sharding
    if sharding is None:
        words = "a shape without a sharding"
        return _unheld(path, shape, dtype, "nowhere", words, "give the ShapeDtypeStruct a sharding")
    # A deleted array still has a sharding, but no memory.
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        return _unheld(path, shape, dtype, "nowhere", "deleted", "its memory was donated to a call, or freed")
    reason = _remark(leaf, sharding)
    if isinstance(sharding, NamedSharding):
        return _named_leaf(path, shape, dtype, sharding, reason)
    slices = {device_id(device): index for device, index in sharding.devices_indices_map(shape).items()}
    blocks = blocks_of_map(shape, slices)
    place = format_devices(tuple(slices)) if blocks.num_blocks == 1 else type(sharding).__name__
    held = _held(path, dtype, blocks, _mesh_of(sharding), ((),) * len(shape), place)
    return dataclasses.replace(held, reason=reason, on_mesh=False)


def _named_leaf(
    path: str, shape: tuple[int, ...], dtype: str, sharding: NamedSharding, reason: str
) -> LeafFacts | Problem:
    mesh = MeshInfo.of(sharding.mesh)
    dims = spec_dims(sharding.spec, len(shape))
    place = spec_text(dims_spec(dims))
    for dim, (size, axes) in enumerate(zip(shape, dims, strict=True)):
        pieces = math.prod(mesh.axis_sizes[axis] for axis in axes)
        # A `ShapeDtypeStruct` takes any spec; no array could have this one.
        if size % pieces:
            what = f"{place} cuts dim {dim} of {shape} in {pieces} pieces, but {size} is not divisible by {pieces}"
            return Problem("indivisible dim", path or "the array", what, "split another dim, or pad this one")
    held = _held(path, dtype, blocks_on_mesh(shape, dims, mesh), mesh, dims, place)
    return dataclasses.replace(held, reason=reason)


def _held(path: str, dtype: str, blocks: Blocks, mesh: MeshInfo, dims: Dims, place: str) -> LeafFacts:
    """Return the facts of a leaf that devices hold."""
    # Of pieces that differ the largest, which memory has to hold.
    local_shape = tuple(max(stop - start for start, stop in pieces) for pieces in blocks.bounds)
    holders = {device for ids in blocks.holders for device in ids}
    device_ids = tuple(device for device in mesh.device_ids if device in holders)
    copies = len(device_ids) // blocks.num_blocks
    return LeafFacts(
        path=path,
        shape=blocks.shape,
        dtype=dtype,
        local_shape=local_shape,
        dims=dims,
        place=place,
        in_words=_in_words(blocks.num_blocks, copies, device_ids),
        bytes_total=num_bytes(blocks.shape, dtype),
        bytes_per_device=num_bytes(local_shape, dtype),
        num_copies=copies,
        device_ids=device_ids,
        find_blocks=lambda: blocks,
        mesh=mesh,
        on_mesh=True,
    )


def _in_words(num_blocks: int, copies: int, ids: tuple[int, ...]) -> str:
    if len(ids) == 1:
        return f"whole, on device {ids[0]}"
    if num_blocks == 1:
        return f"replicated {copies} times"
    if copies == 1:
        return f"split in {num_blocks}"
    return f"split in {num_blocks}, each block on {copies} devices"


def _host_leaf(path: str, array: np.ndarray) -> LeafFacts:
    reason = "not a JAX array: it moves to a device when a computation takes it"
    return _unheld(path, array.shape, str(array.dtype), "host", "on the host only", reason)


def _unheld(path: str, shape: tuple[int, ...], dtype: str, place: str, words: str, reason: str) -> LeafFacts:
    """Return the facts of a leaf that no device holds."""
    return LeafFacts(
        path=path,
        shape=shape,
        dtype=dtype,
        local_shape=shape,
        dims=((),) * len(shape),
        place=place,
        in_words=words,
        bytes_total=num_bytes(shape, dtype),
        reason=reason,
    )


def _remark(leaf: Any, sharding: Sharding) -> str:
    # Only real arrays know whether they are committed, and which memory is their device's own.
    if not isinstance(leaf, jax.Array):
        return ""
    remarks = []
    if not leaf.committed:
        remarks.append("not committed: jit may move it")
    default = next(iter(sharding.device_set)).default_memory().kind
    if sharding.memory_kind not in (None, default):
        remarks.append(f"in {sharding.memory_kind} memory")
    return "; ".join(remarks)


def _mesh_of(sharding: Sharding) -> MeshInfo:
    """Return the devices of a sharding without a mesh, as a row."""
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    return MeshInfo.of(Mesh(np.array(devices), ("device",), axis_types=(AxisType.Auto,)))
