"""Constrain where values inside a traced step live, dim by dim, and leave the other dims to XLA."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Place = Callable[[jax.Array, P], jax.Array]
"""`place(x, spec)` constrains where a value lives; dims behind the spec are left to XLA."""


def placing(mesh: Mesh) -> Place:
    """Return what constrains values on a mesh, also where some of its axes are manual."""

    def place(x: jax.Array, spec: P) -> jax.Array:
        inside = jax.sharding.get_abstract_mesh()
        own = inside if inside.manual_axes else mesh
        open_dims = [P.UNCONSTRAINED] * (x.ndim - len(spec))
        return jax.lax.with_sharding_constraint(x, NamedSharding(own, P(*spec, *open_dims)))

    return place
