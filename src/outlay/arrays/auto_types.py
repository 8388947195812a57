"""An array of an Explicit mesh seen as one of an Auto mesh: its spec is no longer part of its type."""

from __future__ import annotations

import functools

import jax
from jax.sharding import AxisType, Mesh, NamedSharding


def with_auto_types(x: jax.Array) -> jax.Array:
    """The same buffers on a mesh of Auto axes, where every operation has a placement; nothing is copied.

    Args:
        x: an array with a `NamedSharding`.
    """
    sharding = x.sharding
    assert isinstance(sharding, NamedSharding)
    if all(kind is AxisType.Auto for kind in sharding.mesh.axis_types):
        return x
    auto = auto_sharding(sharding)
    held = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, auto, held, dtype=x.dtype)


def with_sharding_of(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """The same buffers under a sharding that differs at most in the types of its axes; nothing is copied."""
    if x.sharding == sharding:
        return x
    held = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, held, dtype=x.dtype)


def auto_sharding(sharding: NamedSharding) -> NamedSharding:
    """The sharding on the mesh's twin whose axes are Auto."""
    return NamedSharding(_auto(sharding.mesh), sharding.spec, memory_kind=sharding.memory_kind)


@functools.lru_cache(maxsize=64)
def _auto(mesh: Mesh) -> Mesh:
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
