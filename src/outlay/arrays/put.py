"""Put host arrays where a plan says, and move arrays to another plan."""

from __future__ import annotations

import collections
import functools
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, Sharding

from outlay.arrays.shardings import given_arrays, target_shardings
from outlay.core.array_leaves import arrays_only, merge_objects, split_objects
from outlay.core.error_types import PlaceError, Problem
from outlay.core.flat_nodes import flat_nodes, users_nodes
from outlay.core.paths import flatten_paths
from outlay.layout.plan import Plan


def put(
    tree: Any, where: Plan | Sharding, mesh: Mesh | None = None, *, check_equal: bool = False, part: bool = False
) -> Any:
    """Place host or device arrays as a plan says, or all of them under one sharding.

    An array that already lives there is not copied: when a program donates the result, the original is gone too.

    If the devices belong to several processes, every process calls it with the same complete host arrays, and each
    reads only the slices of its own devices. `jax.device_put` would send every array to every process first, to compare
    them (256 MiB between two processes: 40 times slower, 12 times the memory).

    Args:
        tree: NumPy or JAX arrays; for a plan, with the paths, shapes and dtypes that it was made for.
        where: where each leaf is to live.
        mesh: the mesh that the plan was made for; a sharding has its own.
        check_equal: compare the arrays of the processes, by a hash of every host array, before anything is placed.
        part: allow the tree to have only some of the plan's leaves, such as `{"params": params}` of a whole state.

    Returns:
        The tree as JAX arrays, each committed to its devices. Of an Equinox module only the arrays remain, as in the
        state of a program; `outlay.train.as_model` puts the rest back.

    Raises:
        LayoutError: paths, shapes or dtypes differ from the plan's; every difference is listed.
        PlaceError: the plan belongs to another mesh, leaves are not arrays, hold what JAX cannot (text, masked values,
            integers beyond 32 bits), or were donated, shapes do not fit, or
            with `check_equal` processes give different arrays; every leaf is listed.
        ProgramError: the mesh has compile-only devices.

    Example:
        >>> mesh = outlay.mesh(data=8)
        >>> plan = outlay.fsdp(min_size=8).plan({"w": jnp.ones((16, 4))}, mesh)
        >>> outlay.arrays.put({"w": np.ones((16, 4), np.float32)}, plan, mesh)["w"].sharding.shard_shape((16, 4))
        (2, 4)
        >>> outlay.arrays.put(np.ones(8), jax.NamedSharding(mesh, P("data"))).sharding.spec
        P('data',)
    """
    objects, tree = split_objects(arrays_only(tree))
    tree = given_arrays(tree)
    targets = target_shardings(tree, where, mesh, part=part)
    if check_equal:
        check_equal_values(tree)
    leaves, structure = jax.tree.flatten(tree)
    pairs = list(zip(leaves, structure.flatten_up_to(targets), strict=True))
    if all(target.is_fully_addressable for _, target in pairs):
        return merge_objects(objects, users_nodes(jax.device_put(tree, targets)))
    return merge_objects(objects, users_nodes(structure.unflatten([_put(leaf, target) for leaf, target in pairs])))


def reshard(tree: Any, where: Plan | Sharding, mesh: Mesh | None = None) -> Any:
    """Move arrays from one plan or sharding on a mesh to another.

    No array is gathered on a device or on the host. The old arrays stay valid; drop them to free their memory. Arrays
    of other devices are moved in pieces, as `outlay.arrays.move` does.

    Args:
        tree: JAX arrays; for a plan, with the paths, shapes and dtypes that it was made for.
        where: where each leaf is to live.
        mesh: the mesh of both plans; a sharding has its own.

    Raises:
        LayoutError: paths, shapes or dtypes differ from the plan's; every difference is listed.
        PlaceError: the plan belongs to another mesh, leaves are not arrays or were donated, or shapes do not fit;
            every leaf is listed.
        ProgramError: the mesh has compile-only devices.

    Example:
        >>> mesh, tree = outlay.mesh(data=4, model=2), {"w": np.ones((8, 8))}
        >>> by_rows = outlay.Layout([("w", P("data"))]).plan(tree, mesh)
        >>> by_blocks = outlay.Layout([("w", P("model", "data"))]).plan(tree, mesh)
        >>> outlay.arrays.reshard(outlay.arrays.put(tree, by_rows, mesh), by_blocks, mesh)["w"].sharding.spec
        P('model', 'data')
    """
    objects, tree = split_objects(tree)
    tree = given_arrays(flat_nodes(tree))
    targets = target_shardings(tree, where, mesh)
    leaves, structure = jax.tree.flatten(targets)
    if _on_the_same_devices(tree, leaves, where):
        # One compiled identity function: XLA exchanges the pieces. device_put would send some of them through the host.
        with jax.set_mesh(None):  # the user may have set a mesh of other devices
            return merge_objects(objects, users_nodes(_identity(structure, tuple(leaves))(tree)))
    if all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree)):
        from outlay.arrays.moving import move

        return merge_objects(objects, users_nodes(move(tree, where, mesh)))
    return merge_objects(objects, users_nodes(jax.device_put(tree, targets)))


def _put(leaf: Any, target: Sharding) -> jax.Array:
    """Put one leaf under a sharding over the devices of several processes."""
    if target.is_fully_addressable or (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable):
        return jax.device_put(leaf, target)
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        # A key has no NumPy form, so its data travels as plain integers.
        words = _put(jax.random.key_data(leaf), target)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    # `jax.device_put` would send the whole array to every process, to compare the values.
    array = np.asarray(leaf)
    from outlay.arrays.from_slices import from_callback

    return from_callback(lambda index: array[index], array.shape, array.dtype, target)


def _on_the_same_devices(tree: Any, leaves: list[Sharding], where: Plan | Sharding) -> bool:
    """Return whether all leaves, old and new, live on the same devices, so that one compiled program can move them."""
    if isinstance(where, Plan):
        return {leaf.device_ids for leaf in where.state} <= {where.mesh.device_ids}
    # Host arrays have no devices; jit puts them where its result is.
    device_sets = [leaf.sharding.device_set for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    return all(devices == leaves[0].device_set for devices in device_sets)


@functools.lru_cache(maxsize=64)
def _identity(structure: Any, leaves: tuple[Any, ...]) -> Any:
    out = jax.tree.unflatten(structure, leaves)
    return jax.jit(lambda tree: tree, out_shardings=out)


def check_equal_values(tree: Any) -> None:
    """Raise in every process unless all processes give the same host arrays.

    Raises:
        PlaceError: with one problem per leaf that differs, naming the processes that differ from the majority.
    """
    from outlay.arrays.process_agreement import exchange

    hashes = exchange({path: _hash(leaf) for path, leaf in flatten_paths(tree)[0] if _is_on_host(leaf)})
    paths = list(dict.fromkeys(path for by_path in hashes for path in by_path))
    problems = [problem for path in paths if (problem := _difference(path, [by_path.get(path) for by_path in hashes]))]
    if problems:
        count = f"{len(problems)} of {len(paths)} arrays"
        raise PlaceError(f"{count} are not the same in all {len(hashes)} processes", problems)


def _difference(path: str, hashes: list[str | None]) -> Problem | None:
    [(usual, _), *others] = collections.Counter(hashes).most_common()
    if not others:
        return None
    odd = [str(process) for process, value in enumerate(hashes) if value != usual]
    first = hashes.index(usual)
    what = f"process {', '.join(odd)} has other values, shape or dtype than process {first}"
    return Problem("differs", path, what, "seed all processes alike, or outlay.arrays.scatter it from one process")


def _is_on_host(leaf: Any) -> bool:
    """Return whether each process has its own copy; random keys are left out, since they have no bytes to read."""
    if isinstance(leaf, jax.Array):
        return leaf.is_fully_addressable and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)
    return True


def _hash(leaf: Any) -> str:
    array = np.asarray(leaf)
    digest = hashlib.blake2b(f"{array.shape} {array.dtype}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
