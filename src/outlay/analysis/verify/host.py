"""Copy trees between the host and devices, never sharing memory with an array that a step donates."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from outlay.core.error_types import ProgramError
from outlay.core.flat_nodes import flat_nodes
from outlay.core.paths import flatten_paths, under
from outlay.devices.device_names import format_devices


def is_key(leaf: Any) -> bool:
    """Return whether an array or a shape holds PRNG keys."""
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def default_kind(key: Any) -> Any:
    """Return a key of JAX's default kind; of a key of another kind, or of its bits, take the bits.

    Raises:
        ProgramError: it is no key.
    """
    default = jax.random.key(0)
    if key is None:
        return default
    bits = key
    if isinstance(key, jax.Array) and is_key(key):
        if key.dtype == default.dtype and key.shape == ():
            return key
        bits = jax.random.key_data(key)
    if not (isinstance(bits, jax.Array | np.ndarray) and bits.dtype == np.uint32 and bits.shape in {(2,), (4,)}):
        fix = f"jax.random.key({key})" if type(key) is int else "jax.random.key(0)"
        raise ProgramError(f"key={key!r} is not a PRNG key\n  fix: key={fix}")
    like = jax.random.key_data(default)
    return jax.random.wrap_key_data(jnp.asarray(np.resize(np.asarray(bits), like.shape)))


def to_host(tree: Any) -> Any:
    """Return the tree with NumPy leaves of its own; keys become their bits."""
    # Classes of the user's may convert what they are given: bits and NumPy arrays would not stay such.
    return jax.tree.map(_leaf_to_host, flat_nodes(tree))


def _leaf_to_host(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and is_key(leaf):
        leaf = jax.random.key_data(leaf)
    # A copy: on CPU NumPy and JAX share memory, which a step that donates its state would overwrite.
    return np.array(leaf)


def to_devices(tree: Any, shapes: Any, shardings: Any) -> Any:
    """Convert the result of `to_host` to arrays with the given shardings.

    Args:
        tree: numpy leaves, keys as their bits.
        shapes: the leaves' shapes and dtypes, keys as keys.
        shardings: one sharding for all leaves, or a tree of them.
    """
    return jax.device_put(typed(tree, shapes), shardings)


def typed(tree: Any, shapes: Any) -> Any:
    """Convert the result of `to_host` to the dtypes of some shapes; bits become keys again."""
    leaves = [_typed(leaf, shape) for leaf, shape in zip(jax.tree.leaves(tree), jax.tree.leaves(shapes), strict=True)]
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _typed(leaf: np.ndarray, shape: Any) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(leaf), impl=_impl(shape)) if is_key(shape) else leaf.astype(shape.dtype)


def _impl(shape: Any) -> Any:
    """Return the kind of key of a shape; JAX only tells it of an array."""
    kinds = []
    jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), shape)
    return kinds[0]


def by_path(tree: Any, root: str = "") -> dict[str, Any]:
    """Return the leaves by their dotted paths below a root."""
    return {under(root, path): leaf for path, leaf in flatten_paths(tree)[0]}


def num_bytes(shapes: Any) -> int:
    """Return the bytes of a tree of shapes, keys left out."""
    return sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(shapes) if not is_key(leaf))


def is_finite(leaves: Mapping[tuple[Any, str], np.ndarray], state: Mapping[str, np.ndarray]) -> bool:
    """Return whether everything that a step changed is finite.

    Args:
        leaves: what it returned, by kind and path.
        state: the state before it, by path.
    """
    return all(
        np.isfinite(leaf.astype(np.complex128)).all()
        for (kind, path), leaf in leaves.items()
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not (kind == "state" and np.array_equal(leaf, state[path]))
    )


def near(sizes: np.ndarray) -> np.ndarray:
    """Return for each entry the largest of its row or of its column, if smaller: one huge column hides no other."""
    if sizes.ndim < 2 or not sizes.size:
        return sizes
    others = [tuple(other for other in range(sizes.ndim) if other != dim) for dim in range(sizes.ndim)]
    smallest = sizes.max(axis=others[0], keepdims=True)
    for axes in others[1:]:
        smallest = np.minimum(smallest, sizes.max(axis=axes, keepdims=True))
    return np.broadcast_to(smallest, sizes.shape)


def differing_copies(array: jax.Array) -> str:
    """Say whether devices that should hold the same piece of an array hold different bits; empty if not.

    JAX reads such an array from one device and never compares the others.
    """
    if is_key(array):
        array = jax.random.key_data(array)
    if math.prod(array.sharding.shard_shape(array.shape)) * len(array.sharding.device_set) == array.size:
        return ""  # each entry is on one device
    copies = collections.defaultdict(list)
    # Not by `addressable_data`, which of a replicated array always gives the first device's.
    for shard in array.addressable_shards:
        copies["" if array.is_fully_replicated else str(shard.index)].append(shard)
    odd, most = [], 0
    for shards in copies.values():
        # As bytes: NaN equals itself, and 0.0 is not -0.0.
        first = np.asarray(shards[0].data).tobytes()
        different = [shard.device.id for shard in shards[1:] if np.asarray(shard.data).tobytes() != first]
        if different:
            odd += different
            most = max(most, len(shards))
    if not odd:
        return ""
    return f"declared the same on {most} devices, but differs: {format_devices(odd)} hold other bits"


def copies_of(array: jax.Array, mesh: Mesh) -> list[np.ndarray] | None:
    """Return what each device of a mesh holds of an array that should be replicated; None for others."""
    if is_key(array) or not array.is_fully_replicated:
        return None
    held = {shard.device: np.asarray(shard.data) for shard in array.addressable_shards}
    return [held[device] for device in mesh.devices.flat] if len(held) == mesh.size else None
