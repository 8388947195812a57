"""Put arrays where a plan or a sharding says, and move them when that changes."""

from __future__ import annotations

import collections
import functools
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, Sharding

from outlay.arrays.announcements import exchange
from outlay.arrays.callback import from_callback
from outlay.arrays.misfits import refuse_misfits, refuse_mismatch
from outlay.arrays.shardings import check_mesh, shardings
from outlay.core.array_leaves import arrays_only
from outlay.core.error_types import PlaceError, Problem
from outlay.core.paths import flatten_paths
from outlay.devices.made import refuse_to_run
from outlay.layout.plan import Plan


def put(
    tree: Any, where: Plan | Sharding, mesh: Mesh | None = None, *, check_equal: bool = False, part: bool = False
) -> Any:
    """Place host or device arrays as a plan says, or all of them under one sharding.

    An array that lives there already is not copied: give the result to a program, and the array is used up too.

    Where the devices are of several processes, every process calls it with the same whole host arrays, and each reads
    only the slices that its own devices hold. `jax.device_put` would send every array to every process first, to
    compare them.

    Args:
        tree: numpy or JAX arrays; for a plan, of the paths, shapes and dtypes that it was made for.
        where: where each leaf lives.
        mesh: the mesh that the plan was made for; a sharding has its own.
        check_equal: compare what the processes give, by a hash of every host array, before anything is placed.
        part: the tree has only some of the plan's leaves, such as `{"params": params}` of a whole state.

    Returns:
        The tree as JAX arrays, each committed to its place; of an Equinox module its arrays alone, as the state of a
        program holds it: `outlay.as_model` makes it whole.

    Raises:
        LayoutError: paths, shapes or dtypes differ from the plan's; every difference is listed.
        PlaceError: the plan is of another mesh, shapes do not fit the sharding, or with `check_equal` processes give
            different arrays; every leaf is listed.
        ProgramError: the mesh is of compile-only devices.

    Example:
        >>> mesh = outlay.mesh(data=8)
        >>> plan = outlay.fsdp(min_size=8).plan({"w": jnp.ones((16, 4))}, mesh)
        >>> outlay.put({"w": np.ones((16, 4), np.float32)}, plan, mesh)["w"].sharding.shard_shape((16, 4))
        (2, 4)
        >>> outlay.put(np.ones(8), jax.NamedSharding(mesh, P("data"))).sharding.spec
        P('data',)
    """
    tree = arrays_only(tree)
    wanted = _wanted(tree, where, mesh, part=part)
    if check_equal:
        refuse_different_values(tree)
    leaves, structure = jax.tree.flatten(tree)
    places = structure.flatten_up_to(wanted)
    if all(place.is_fully_addressable for place in places):
        return jax.device_put(tree, wanted)
    return structure.unflatten([_put(leaf, place) for leaf, place in zip(leaves, places, strict=True)])


def reshard(tree: Any, where: Plan | Sharding, mesh: Mesh | None = None) -> Any:
    """Move arrays that already live on a mesh to another plan or sharding, with their values.

    None is ever gathered on a device or the host. The old arrays stay valid; drop them to free their memory.

    Args:
        tree: JAX arrays; for a plan, of the paths, shapes and dtypes that it was made for.
        where: where each leaf shall live.
        mesh: the mesh of both plans; a sharding has its own.

    Raises:
        LayoutError: paths, shapes or dtypes differ from the plan's; every difference is listed.
        PlaceError: the plan is of another mesh, or shapes do not fit the sharding; every leaf is listed.
        ProgramError: the mesh is of compile-only devices.

    Example:
        >>> mesh, tree = outlay.mesh(data=4, model=2), {"w": np.ones((8, 8))}
        >>> by_rows = outlay.Layout([("w", P("data"))]).plan(tree, mesh)
        >>> by_blocks = outlay.Layout([("w", P("model", "data"))]).plan(tree, mesh)
        >>> outlay.reshard(outlay.put(tree, by_rows, mesh), by_blocks, mesh)["w"].sharding.spec
        P('model', 'data')
    """
    wanted = _wanted(tree, where, mesh)
    leaves, structure = jax.tree.flatten(wanted)
    if _on_the_same_devices(tree, leaves, where):
        # One compiled identity: XLA exchanges the pieces; device_put would pass some of them through the host.
        with jax.set_mesh(None):  # a mesh that the user has set may be of other devices
            return _identity(structure, tuple(leaves))(tree)
    return jax.device_put(tree, wanted)


def _wanted(tree: Any, where: Plan | Sharding, mesh: Mesh | None, *, part: bool = False) -> Any:
    """The tree with each leaf replaced by the sharding that it shall have, if it can."""
    if isinstance(where, Sharding):
        refuse_misfits([(path, jnp.shape(leaf)) for path, leaf in flatten_paths(tree)[0]], where)
        return jax.tree.map(lambda _: where, tree)
    if mesh is None:
        raise PlaceError(
            "a plan names devices by number\n  fix: give the mesh that it was made for too, (tree, plan, mesh)"
        )
    check_mesh(where, mesh)
    refuse_to_run(mesh, "arrays cannot be put")
    refuse_mismatch(tree, where.state, "the plan", part=part)
    return shardings(where, tree, mesh)


def _put(leaf: Any, place: Sharding) -> jax.Array:
    if place.is_fully_addressable or (isinstance(leaf, jax.Array) and not leaf.is_fully_addressable):
        return jax.device_put(leaf, place)
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = _put(jax.random.key_data(leaf), place)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    return from_callback(lambda index: array[index], array.shape, array.dtype, place)


def _on_the_same_devices(tree: Any, leaves: list[Sharding], where: Plan | Sharding) -> bool:
    """Whether every leaf stays on the devices, in the order, that one compiled program can run on."""
    if isinstance(where, Plan):
        return {leaf.device_ids for leaf in where.state} <= {where.mesh.device_ids}
    held = [leaf.sharding.device_set for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    return all(devices == leaves[0].device_set for devices in held)


@functools.lru_cache(maxsize=64)
def _identity(structure: Any, leaves: tuple[Any, ...]) -> Any:
    out = jax.tree.unflatten(structure, leaves)
    return jax.jit(lambda tree: tree, out_shardings=out)


def refuse_different_values(tree: Any) -> None:
    """Raise, in every process, where they do not all give the same host arrays.

    Raises:
        PlaceError: with one problem per leaf that differs, naming the processes that differ from most.
    """
    own = {path: _hash(leaf) for path, leaf in flatten_paths(tree)[0] if _is_on_host(leaf)}
    said = exchange(own)
    paths = list(dict.fromkeys(path for one in said for path in one))
    problems = [problem for path in paths if (problem := _difference(path, [one.get(path) for one in said]))]
    if problems:
        count = f"{len(problems)} of {len(paths)} arrays"
        raise PlaceError(f"{count} are not the same in all {len(said)} processes", problems)


def _difference(path: str, hashes: list[str | None]) -> Problem | None:
    [(usual, _), *others] = collections.Counter(hashes).most_common()
    if not others:
        return None
    odd = [str(process) for process, found in enumerate(hashes) if found != usual]
    first = hashes.index(usual)
    what = f"process {', '.join(odd)} has other values, shape or dtype than process {first}"
    return Problem("differs", path, what, "seed all processes alike, or outlay.arrays.scatter it from one")


def _is_on_host(leaf: Any) -> bool:
    """What each process has on its own, keys left out: they have no bytes to read."""
    if isinstance(leaf, jax.Array):
        return leaf.is_fully_addressable and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)
    return True


def _hash(leaf: Any) -> str:
    array = np.asarray(leaf)
    found = hashlib.blake2b(f"{array.shape} {array.dtype}".encode(), digest_size=16)
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
