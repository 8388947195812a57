"""The devices of each stage, as a mesh of their own, and arrays that are seen from there without being copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.core.jax_tracing import CUSTOM_RULES, rerun, run_jaxpr
from outlay.layout.placement import Dims, dims_spec
from outlay.program.mixed_samples import HOLDING


def stage_meshes(mesh: Mesh, axis: str) -> list[Mesh]:
    """Return a mesh for each stage: its devices, under the same axes, with size 1 along the axis of the stages."""
    place = mesh.axis_names.index(axis)
    parts = (mesh.devices.take([number], axis=place) for number in range(mesh.shape[axis]))
    return [Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types) for devices in parts]


def is_here(devices: np.ndarray) -> bool:
    """Return whether this process has one of these devices."""
    return any(device.process_index == jax.process_index() for device in devices.flat)


def without_axis(dims: Dims, axis: str) -> P:
    """Return the spec of a leaf without one axis."""
    return dims_spec(tuple(tuple(one for one in axes if one != axis) for axes in dims))


def seen_on(x: jax.Array, sharding: NamedSharding, shape: tuple[int, ...]) -> jax.Array:
    """Return the pieces of an array that lie on the devices of a stage as an array there; nothing is copied.

    Args:
        x: an array on all devices, in pieces that fit the sharding.
        sharding: of the stage.
        shape: the shape there.

    Raises:
        ValueError: it is on other devices, or in other pieces.
    """
    pieces = {shard.device: shard.data for shard in x.addressable_shards}
    own = [pieces[device] for device in _devices(sharding) if device in pieces]
    return jax.make_array_from_single_device_arrays(shape, sharding, own)


def joined_of(parts: Sequence[jax.Array], like: jax.ShapeDtypeStruct) -> jax.Array:
    """Return the arrays of all stages as one on all devices, one behind the other in dim 0; nothing is copied.

    Args:
        parts: those of the stages of this process.
        like: the whole, with its sharding.
    """
    sharding = cast(NamedSharding, like.sharding)
    pieces = {shard.device: shard.data for part in parts for shard in part.addressable_shards}
    own = [pieces[device] for device in _devices(sharding) if device in pieces]
    return jax.make_array_from_single_device_arrays(like.shape, sharding, own)


def _devices(sharding: NamedSharding) -> Sequence[jax.Device]:
    return cast(Mesh, sharding.mesh).devices.flatten().tolist()


def of_a_stage(jaxpr: Any, mesh: AbstractMesh) -> Any:
    """Return a traced program as one of the mesh of a stage: its constraints mean that mesh, in its loops too."""

    def run(inner: Any, values: Sequence[Any]) -> list[Any]:
        return run_jaxpr(inner, values, evaluate, in_its_mesh=False)

    def evaluate(eqn: Any, values: list[Any], bind: Any) -> list[Any]:
        # Numbers that are written in a trace name its mesh, too.
        values = [x if isinstance(x, jax.Array) else np.asarray(x) for x in values]
        sharding = eqn.params.get("sharding")
        if eqn.primitive.name == "sharding_constraint" and isinstance(sharding, NamedSharding):
            return [jax.lax.with_sharding_constraint(values[0], NamedSharding(mesh, sharding.spec))]
        if isinstance(sharding, NamedSharding):  # how a value is made, in the mesh of the program
            params = eqn.primitive.get_bind_params({**eqn.params, "sharding": NamedSharding(mesh, sharding.spec)})
            return [eqn.primitive.bind(*values, **params)]
        if eqn.primitive.name in CUSTOM_RULES:  # nothing is differentiated any more
            return run(eqn.params["call_jaxpr"], values)
        return rerun(eqn, values, run) if eqn.primitive.name in HOLDING else bind(*values)

    with jax.set_mesh(None), jax.sharding.use_abstract_mesh(mesh):
        # Without the mesh of the program, which the shapes of a trace name.
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jaxpr.in_avals]
        return jax.make_jaxpr(lambda *values: run(jaxpr, values))(*shapes)
