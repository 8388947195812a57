"""What one process has, in all of them: a global array from it, or a copy in each."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from outlay.arrays.announcements import exchange, process_problem, refuse_absent, refuse_difference
from outlay.arrays.bounds import MOST_BYTES, Bounds, blocks, cut, of_index, shape_of
from outlay.arrays.callback import from_callback
from outlay.arrays.misfits import refuse_misfits
from outlay.core.error_types import PlaceError, Problem


def scatter(value: Any, sharding: Sharding, source: int = 0) -> jax.Array:
    """Make a global array from a value that one process has whole; every process calls it.

    The value travels in slabs of at most 64 MiB: no other process ever holds it whole, unless the sharding says so.

    Args:
        value: the whole array, in the process `source`. What the other processes pass is not looked at; None will do.
        sharding: where the array shall live.
        source: the number of the process whose value counts.

    Raises:
        PlaceError: there is no process `source`, the processes name different ones, the source has no array, or its
            shape cannot have the sharding.

    Example:
        >>> rows = jax.NamedSharding(outlay.mesh(x=8), P("x"))
        >>> outlay.arrays.scatter(np.arange(16), rows).addressable_shards[3].data.tolist()
        [6, 7]
    """
    header = _agree(value, source, str(sharding), "scatter")
    refuse_absent(sharding, "scatter")
    refuse_misfits([("", header.shape)], sharding)
    all_blocks = list(blocks(header.shape, sharding))
    own = blocks(header.shape, sharding, process=jax.process_index())
    parts = _receive(value, header, all_blocks, own)

    def read(index: tuple[slice, ...]) -> np.ndarray:
        return parts.pop(of_index(index, header.shape))

    return from_callback(read, header.shape, header.dtype, sharding)


def broadcast(value: Any, source: int = 0) -> np.ndarray:
    """Give every process a copy of an array that one of them has; every process calls it.

    What it adds to `multihost_utils.broadcast_one_to_all`: the others need not know shape and dtype, and the bytes
    arrive as they were, 64-bit numbers too.

    Args:
        value: the array, in the process `source`. What the other processes pass is not looked at; None will do.
        source: the number of the process whose value counts.

    Raises:
        PlaceError: there is no process `source`, the processes name different ones, or the source has no array.

    Example:
        >>> outlay.arrays.broadcast(np.arange(3))
        array([0, 1, 2])
    """
    header = _agree(value, source, "", "broadcast")
    whole = tuple((0, size) for size in header.shape)
    return _receive(value, header, [whole], [whole])[whole]


@dataclass(frozen=True)
class _Header:
    """What the others must know of the value before it comes."""

    shape: tuple[int, ...]
    dtype: np.dtype
    source: int


def _agree(value: Any, source: int, place: str, verb: str) -> _Header:
    """Everybody says what it means to do; whoever is wrong, all raise the same error."""
    fault = process_problem(source, "source")
    is_source = fault is None and source == jax.process_index()
    array = np.asarray(value) if is_source and value is not None else None
    own = {
        "fault": fault and [fault.kind, fault.where, fault.what, fault.fix],
        "source": None if fault else int(source),
        "place": place,
        "array": None if array is None else [array.shape, array.dtype.name, array.dtype.kind in "OSUM"],
    }
    said = exchange(own)
    faults = [Problem(*one["fault"]) for one in said if one["fault"]]
    if faults:
        raise PlaceError(f"{verb} from a process that is not there, in {len(faults)} of {len(said)} processes", faults)
    fix = f"pass the same to outlay.{verb} everywhere"
    refuse_difference([f"source={one['source']}" for one in said], f"the source of {verb}", fix)
    refuse_difference([one["place"] for one in said], f"the sharding of {verb}", fix)
    sent = said[source]["array"]
    if sent is None or sent[2]:
        what = "passed None" if sent is None else f"passed {sent[1]}, which is not numbers"
        problem = Problem("no array", f"process {source}", what, "pass the whole array there")
        raise PlaceError(f"{verb} has nothing to send: process {source} is the source", [problem])
    return _Header(tuple(sent[0]), np.dtype(sent[1]), int(source))


def _receive(value: Any, header: _Header, all_blocks: list[Bounds], own: Iterable[Bounds]) -> dict[Bounds, np.ndarray]:
    """This process's blocks of the value that the source has."""
    received = {block: np.empty(shape_of(block), header.dtype) for block in own}
    slabs = cut(header.shape, header.dtype, all_blocks[0], MOST_BYTES)
    is_source = jax.process_index() == header.source
    whole = np.asarray(value) if is_source else None
    for start in slabs.starts:
        slab = np.zeros(slabs.shape, header.dtype)
        if whole is not None:
            for block in all_blocks:
                slab[slabs.in_slab(block)] = whole[slabs.in_array(block, start)]
        slab = _sent(slab)
        for block, part in received.items():
            part[slabs.in_block(start) if slabs.dim is not None else ...] = slab[slabs.in_slab(block)]
    return received


def _sent(slab: np.ndarray) -> np.ndarray:
    """The sum over processes, of which all but the source bring zeros: as bytes, so that every bit arrives."""
    if jax.process_count() == 1 or not slab.size:
        return slab
    mesh = _one_device_a_process()
    row = NamedSharding(mesh, PartitionSpec("process"))
    own = slab.reshape(-1).view(np.uint8)
    rows = from_callback(lambda _: own[None], (mesh.size, own.size), np.uint8, row)
    return np.asarray(_summed(mesh)(rows)).reshape(-1).view(slab.dtype).reshape(slab.shape)


@functools.cache
def _one_device_a_process() -> Mesh:
    first: Mapping[int, jax.Device] = {device.process_index: device for device in reversed(jax.devices())}
    return Mesh(np.array([first[process] for process in sorted(first)]), ("process",), axis_types=(AxisType.Auto,))


@functools.cache
def _summed(mesh: Mesh) -> Any:
    def add(row: jax.Array) -> jax.Array:
        return jax.lax.psum(row, "process")

    return jax.jit(jax.shard_map(add, mesh=mesh, in_specs=PartitionSpec("process"), out_specs=PartitionSpec()))
