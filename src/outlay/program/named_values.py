"""Name values for the policy of a checkpoint, where rules say how they are stored for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from outlay.core.paths import map_with_paths, under
from outlay.layout.plan import Plan


def naming(plan: Plan) -> Callable[[str | PartitionSpec, Any], Any]:
    """Return what names the values of a tree by their paths; values that are constrained by a spec have no name.

    Args:
        plan: the plan, whose rules may store values.
    """
    stored = {leaf.path for leaf in plan.of_kind("intermediate") if leaf.stored}

    def named(where: str | PartitionSpec, tree: Any) -> Any:
        if not stored or isinstance(where, PartitionSpec):
            return tree

        def one(path: str, value: Any) -> Any:
            path = under(where, path)
            return checkpoint_name(value, path) if path in stored else value

        return map_with_paths(one, tree)

    return named
