"""Give `outlay.constrain` its meaning while a step is traced for a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from outlay.core.constrain import resolving
from outlay.core.paths import map_with_paths
from outlay.layout.plan import Plan
from outlay.place.shardings import sharding, under


def placing(step: Callable[[Any, Any], Any], plan: Plan, mesh: Mesh) -> Callable[[Any, Any], Any]:
    """The step with the values that it names constrained where a rule places them."""
    ruled = {leaf.path: sharding(leaf, mesh) for leaf in plan.of_kind("intermediate")}

    def place(name: str, tree: Any) -> Any:
        def one(path: str, value: Any) -> Any:
            where = ruled.get(under(name, path))
            return value if where is None else jax.lax.with_sharding_constraint(value, where)

        return map_with_paths(one, tree)

    @functools.wraps(step)
    def placed(state: Any, batch: Any) -> Any:
        with resolving(place):
            return step(state, batch)

    return placed
