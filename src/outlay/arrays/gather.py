"""A global array as numpy, in every process or in one."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from outlay.arrays.announcements import process_problem, refuse_absent
from outlay.arrays.auto_types import auto_sharding, with_auto_types
from outlay.arrays.bounds import MOST_BYTES, Slabs, blocks, cut
from outlay.core.error_types import PlaceError, Problem
from outlay.core.paths import flatten_paths


def gather(tree: Any, to: int | None = None) -> Any:
    """Fetch arrays as numpy, whichever processes hold their parts; every process calls it.

    `np.asarray(x)` fails where other processes hold a part of `x`. What this adds to `process_allgather`: the array
    travels in slabs of at most 64 MiB, so that no device ever holds it whole, and with `to` no other process does.

    Args:
        tree: arrays, or a tree of them. What this process can see whole is only copied to the host.
        to: the process that gets them; without it, all do.

    Returns:
        The tree as numpy arrays. In processes other than `to`, None for each.

    Raises:
        PlaceError: there is no process `to`; or leaves are random keys, are not split by a mesh, or live on devices of
            only some of the processes. All of them are listed.

    Example:
        >>> x = jax.device_put(jnp.arange(8), jax.NamedSharding(outlay.mesh(x=8), P("x")))
        >>> outlay.arrays.gather({"x": x})
        {'x': array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)}
    """
    if to is not None and (problem := process_problem(to, "to")):
        raise PlaceError("gather cannot bring arrays there", [problem])
    named, structure = flatten_paths(tree)
    problems = [problem for path, leaf in named if (problem := _ungatherable(path, leaf))]
    if problems:
        raise PlaceError(f"{len(problems)} of {len(named)} arrays cannot be gathered", problems)
    for _, leaf in named:
        if _is_split_between_processes(leaf):
            refuse_absent(leaf.sharding, "gather")
    return jax.tree.unflatten(structure, [_gathered(leaf, to in (None, jax.process_index())) for _, leaf in named])


def _ungatherable(path: str, leaf: Any) -> Problem | None:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return Problem("random key", path, "a key has no numpy form", "gather(jax.random.key_data(key))")
    if _is_split_between_processes(leaf) and not isinstance(leaf.sharding, NamedSharding):
        kind = type(leaf.sharding).__name__
        return Problem("no mesh", path, f"it has a {kind}", "outlay.reshard(x, jax.NamedSharding(mesh, spec)) first")
    return None


def _is_split_between_processes(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)


def _gathered(leaf: Any, wanted: bool) -> np.ndarray | None:
    if not _is_split_between_processes(leaf):
        return np.asarray(leaf) if wanted else None
    held = blocks(leaf.shape, leaf.sharding)
    slabs = cut(leaf.shape, leaf.dtype, next(iter(held)), MOST_BYTES)
    auto = auto_sharding(leaf.sharding)
    take, blocks_of_leaf = _replicated(auto.mesh, auto.spec, slabs), with_auto_types(leaf)
    whole = np.empty(leaf.shape, leaf.dtype) if wanted else None
    for start in slabs.starts:
        slab = take(blocks_of_leaf, np.int32(start))
        if whole is None:  # wait, so that this process too has one slab at a time under way
            jax.block_until_ready(slab)
            continue
        seen = np.asarray(slab)
        for block in held:
            whole[slabs.in_array(block, start)] = seen[slabs.in_slab(block)]
    return whole


@functools.lru_cache(maxsize=64)
def _replicated(mesh: Mesh, spec: PartitionSpec, slabs: Slabs) -> Any:
    """A slab taken from the blocks and then replicated; a slice of the whole would gather the whole first."""

    def take(block: jax.Array, start: jax.Array) -> jax.Array:
        if slabs.dim is None:
            return block
        return jax.lax.dynamic_slice_in_dim(block, start, slabs.rows, slabs.dim)

    taken = jax.shard_map(take, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec)
    return jax.jit(taken, out_shardings=NamedSharding(mesh, PartitionSpec()))
