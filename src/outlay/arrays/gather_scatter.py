"""Gather, scatter and broadcast arrays between processes, in slabs, so that no transfer needs the whole in memory."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from outlay.arrays.check_arrays import check_fits
from outlay.arrays.from_slices import from_callback
from outlay.arrays.host_values import Refused, take_array
from outlay.arrays.process_agreement import NO_SUCH_PROCESS, check_all_present, check_same, exchange, process_problem
from outlay.arrays.sharding_blocks import MOST_BYTES, Bounds, Slabs, blocks, cut, of_index, shape_of
from outlay.arrays.shardings import auto_sharding, with_auto_types
from outlay.core.array_leaves import merge_objects, split_objects
from outlay.core.error_types import PlaceError, Problem
from outlay.core.paths import flatten_paths


def gather(tree: Any, to: int | None = None) -> Any:
    """Fetch arrays as NumPy, whichever processes hold their parts; every process calls it.

    `np.asarray(x)` fails if other processes hold a part of `x`. Beyond `process_allgather`: an array travels in slabs
    of at most 64 MiB, so that no device ever holds all of it, and with `to` no other process does.

    Args:
        tree: arrays, in any pytree. Arrays that this process holds completely are only copied to the host.
        to: the process that gets them; by default all do.

    Returns:
        The tree with NumPy arrays; in processes other than `to`, with None for each.

    Raises:
        PlaceError: there is no process `to`; or leaves are random keys, have no mesh, or live on devices of only some
            of the processes. All of them are listed.

    Example:
        >>> x = jax.device_put(jnp.arange(8), jax.NamedSharding(outlay.mesh(x=8), P("x")))
        >>> outlay.arrays.gather({"x": x})
        {'x': array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)}
    """
    if to is not None and (problem := process_problem(to, "to")):
        raise PlaceError("gather has no process to bring the arrays to", [problem])
    objects, arrays = split_objects(tree)
    named, structure = flatten_paths(arrays)
    problems = [problem for path, leaf in named if (problem := _ungatherable(path, leaf))]
    if problems:
        raise PlaceError(f"{len(problems)} of {len(named)} arrays cannot be gathered", problems)
    for _, leaf in named:
        if _is_split_between_processes(leaf):
            check_all_present(leaf.sharding, "gather")
    gathered = [gather_among_holders(leaf, to in (None, jax.process_index())) for _, leaf in named]
    return merge_objects(objects, jax.tree.unflatten(structure, gathered))


def _ungatherable(path: str, leaf: Any) -> Problem | None:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return Problem("random key", path, "a key has no NumPy form", "gather(jax.random.key_data(key))")
    if _is_split_between_processes(leaf) and not isinstance(leaf.sharding, NamedSharding):
        kind = type(leaf.sharding).__name__
        return Problem(
            "no mesh", path, f"it has a {kind}", "outlay.arrays.reshard(x, jax.NamedSharding(mesh, spec)) first"
        )
    return None


def _is_split_between_processes(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)


def gather_among_holders(leaf: Any, is_receiver: bool) -> np.ndarray | None:
    """Fetch one array as NumPy; every process that holds a part of it calls this, and no other does."""
    if not _is_split_between_processes(leaf):
        return np.asarray(leaf) if is_receiver else None
    all_blocks = blocks(leaf.shape, leaf.sharding)
    slabs = cut(leaf.shape, leaf.dtype, next(iter(all_blocks)), MOST_BYTES)
    auto = auto_sharding(leaf.sharding)
    take, source = _replicated_slab(auto.mesh, auto.spec, slabs), with_auto_types(leaf)
    whole = np.empty(leaf.shape, leaf.dtype) if is_receiver else None
    for start in slabs.starts:
        slab = take(source, np.int32(start))
        if whole is None:  # wait, so that this process too has only one slab in flight
            jax.block_until_ready(slab)
            continue
        on_host = np.asarray(slab)
        for block in all_blocks:
            whole[slabs.in_array(block, start)] = on_host[slabs.in_slab(block)]
    return whole


@functools.lru_cache(maxsize=64)
def _replicated_slab(mesh: Mesh, spec: PartitionSpec, slabs: Slabs) -> Any:
    """Compile the slicing and replication of one slab.

    Each device slices its own block: outside of `shard_map`, XLA would gather the whole array before it slices.
    """

    def take(block: jax.Array, start: jax.Array) -> jax.Array:
        if slabs.dim is None:
            return block
        return jax.lax.dynamic_slice_in_dim(block, start, slabs.rows, slabs.dim)

    taken = jax.shard_map(take, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec)
    return jax.jit(taken, out_shardings=NamedSharding(mesh, PartitionSpec()))


def scatter(value: Any, sharding: Sharding, source: int = 0) -> jax.Array:
    """Make a global array from a value that one process has; every process calls it.

    The value travels in slabs of at most 64 MiB: no other process holds all of it, unless the sharding replicates it.

    Args:
        value: the whole array, in the process `source`. Other processes may pass anything, such as None; it is ignored.
        sharding: where the array is to live.
        source: the number of the process whose value counts.

    Raises:
        PlaceError: there is no process `source`, the processes name different ones, the source has no array, or one
            that JAX cannot hold (masked, or with integers beyond its dtype), or its shape cannot have the sharding.

    Example:
        >>> rows = jax.NamedSharding(outlay.mesh(x=8), P("x"))
        >>> outlay.arrays.scatter(np.arange(16), rows).addressable_shards[3].data.tolist()
        [6, 7]
    """
    array, header = _agree(value, source, str(sharding), "scatter", to_jax=True)
    check_all_present(sharding, "scatter")
    check_fits([("", header.shape)], sharding)
    all_blocks = list(blocks(header.shape, sharding))
    own = blocks(header.shape, sharding, process=jax.process_index())
    parts = _receive(array, header, all_blocks, own)

    def read(index: tuple[slice, ...]) -> np.ndarray:
        return parts.pop(of_index(index, header.shape))

    x = from_callback(read, header.shape, header.dtype, sharding)
    return x if header.key is None else jax.random.wrap_key_data(x, impl=header.key)


def broadcast(value: Any, source: int = 0) -> np.ndarray:
    """Give every process a copy of an array that one process has; every process calls it.

    Beyond `multihost_utils.broadcast_one_to_all`: the others need not know shape and dtype, and every bit arrives, also
    of 64-bit numbers.

    Args:
        value: the array, in the process `source`. Other processes may pass anything, such as None; it is ignored.
        source: the number of the process whose value counts.

    Raises:
        PlaceError: there is no process `source`, the processes name different ones, or the source has no array.

    Example:
        >>> outlay.arrays.broadcast(np.arange(3))
        array([0, 1, 2])
    """
    array, header = _agree(value, source, "", "broadcast", to_jax=False)
    whole = tuple((0, size) for size in header.shape)
    return _receive(array, header, [whole], [whole])[whole]


@dataclass(frozen=True)
class _Header:
    """What is known of an array to all processes before it travels.

    Attributes:
        shape, dtype: those of the array; of random keys, of their data.
        source: the process that has it.
        key: the kind of the keys; None for other arrays.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    source: int
    key: str | None


def _agree(value: Any, source: int, target: str, verb: str, *, to_jax: bool) -> tuple[np.ndarray | None, _Header]:
    """Compare the arguments of all processes, so that all raise the same error; return what the source sends.

    Args:
        value: what this process passed.
        source: the process whose value counts.
        target: the sharding, in words.
        verb: what is called.
        to_jax: whether the array becomes one of JAX; else it keeps its 64 bits.
    """
    fault = process_problem(source, "source")
    is_source = fault is None and source == jax.process_index()
    key, array = None, None
    try:
        if is_source and isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            if not to_jax:
                raise Refused("random key", "a key has no NumPy form", f"{verb}(jax.random.key_data(key))")
            key, value = str(jax.random.key_impl(value)), jax.random.key_data(value)
        if is_source and value is not None:
            array = np.asarray(take_array(value, keeps_64_bits=not to_jax))
    except Refused as odd:
        fault = odd.at(f"process {source}")
    own = {
        "fault": fault and [fault.kind, fault.where, fault.what, fault.fix],
        "source": None if fault else int(source),
        "target": target,
        "array": None if array is None else [array.shape, array.dtype.name, key],
    }
    calls = exchange(own)
    faults = [Problem(*call["fault"]) for call in calls if call["fault"]]
    if faults:
        what = "names a missing process" if faults[0].kind == NO_SUCH_PROCESS else "has nothing that can be sent"
        raise PlaceError(f"{verb} {what}, in {len(faults)} of {len(calls)} processes", faults)
    fix = f"pass the same to outlay.arrays.{verb} everywhere"
    check_same([f"source={call['source']}" for call in calls], f"the source of {verb}", fix)
    check_same([call["target"] for call in calls], f"the sharding of {verb}", fix)
    array_type = calls[source]["array"]
    if array_type is None:
        problem = Problem("no array", f"process {source}", "passed None", "pass the whole array there")
        raise PlaceError(f"{verb} has nothing to send: process {source} is the source", [problem])
    shape, dtype, key = array_type
    return array, _Header(tuple(shape), np.dtype(dtype), int(source), key)


def _receive(
    whole: np.ndarray | None, header: _Header, all_blocks: list[Bounds], own: Iterable[Bounds]
) -> dict[Bounds, np.ndarray]:
    """Receive this process's blocks of the source's array, slab by slab."""
    received = {block: np.empty(shape_of(block), header.dtype) for block in own}
    slabs = cut(header.shape, header.dtype, all_blocks[0], MOST_BYTES)
    for start in slabs.starts:
        slab = np.zeros(slabs.shape, header.dtype)  # zeros, since slabs are added up: only the source has others
        if whole is not None:
            for block in all_blocks:
                slab[slabs.in_slab(block)] = whole[slabs.in_array(block, start)]
        slab = _sent_slab(slab)
        for block, part in received.items():
            part[slabs.in_block(start) if slabs.dim is not None else ...] = slab[slabs.in_slab(block)]
    return received


def _sent_slab(slab: np.ndarray) -> np.ndarray:
    """Send a slab from the source to all processes.

    It is the sum over processes, of which all but the source contribute zeros. Summed as bytes, every bit arrives.
    """
    if jax.process_count() == 1 or not slab.size:
        return slab
    mesh = _one_device_a_process()
    row = NamedSharding(mesh, PartitionSpec("process"))
    own = slab.reshape(-1).view(np.uint8)
    rows = from_callback(lambda _: own[None], (mesh.size, own.size), np.uint8, row)
    return np.asarray(_summed(mesh)(rows)).reshape(-1).view(slab.dtype).reshape(slab.shape)


@functools.cache
def _one_device_a_process() -> Mesh:
    # Backwards, so that the first of each process's devices is what remains.
    first: Mapping[int, jax.Device] = {device.process_index: device for device in reversed(jax.devices())}
    return Mesh(np.array([first[process] for process in sorted(first)]), ("process",), axis_types=(AxisType.Auto,))


@functools.cache
def _summed(mesh: Mesh) -> Any:
    def add(row: jax.Array) -> jax.Array:
        return jax.lax.psum(row, "process")

    return jax.jit(jax.shard_map(add, mesh=mesh, in_specs=PartitionSpec("process"), out_specs=PartitionSpec()))
