"""Meshes and shapes without devices, for tests of the pure line."""

from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType


def abstract(**axes: int) -> AbstractMesh:
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def shape(*dims: int, dtype: Any = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)
