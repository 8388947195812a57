"""Arrays for the tests of reports."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def mesh_of(num_devices: int | None = None, **axes: int) -> Mesh:
    """A mesh over the first devices, in the order of their ids."""
    devices = np.array(jax.devices()[:num_devices]).reshape(tuple(axes.values()))
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def put(shape: tuple[int, ...], mesh: Mesh, *spec: Any, dtype: Any = jnp.float32) -> jax.Array:
    """An array of ones on a mesh."""
    return jax.device_put(jnp.ones(shape, dtype), NamedSharding(mesh, P(*spec)))


def pod(**axes: int) -> AbstractMesh:
    """A mesh without devices."""
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def shape_on(shape: tuple[int, ...], mesh: Any, *spec: Any, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    """The shape of an array that nobody has made."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))
