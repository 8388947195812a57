"""What the leaves of a state are, by their library, else by their names: parameters, statistics, random state."""

from __future__ import annotations

import sys
from typing import Any

from outlay.core.paths import flatten_paths, split_path
from outlay.layout.optimizer_state import OPTIMIZER_ROOTS, PARAMETERS

PARAMS, OPTIMIZER, BATCH, OTHER = "params", "optimizer", "batch", ""
STATISTICS, RANDOM, METRICS = "batch statistics", "rng state", "metrics"


def roles_of(state: Any) -> dict[str, str]:
    """Return the role of each leaf of a state by its path: one of the above, or the kind of an NNX variable.

    >>> roles_of({"params": {"w": np.ones(3)}, "batch_stats": {"mean": np.ones(3)}, "key": jax.random.key(0)})
    {'batch_stats.mean': 'batch statistics', 'key': 'rng state', 'params.w': 'params'}
    """
    nnx = sys.modules.get("flax.nnx")
    leaves = flatten_paths(state, None if nnx is None else lambda node: isinstance(node, nnx.Variable))[0]
    return {path: _of_variable(nnx, leaf) or role_by_path(path, leaf) for path, leaf in leaves}


def role_by_path(path: str, leaf: Any = None) -> str:
    """Return the role of a leaf by the names in its path, and by its dtype if that is of random keys.

    >>> role_by_path("opt_state.0.mu.w"), role_by_path("state.params.w"), role_by_path("model.layers.0.w")
    ('optimizer', 'params', 'params')
    """
    first, *rest = (*split_path(path), "")
    names = (first, rest[0]) if rest else (first,)
    if first == BATCH:
        return BATCH
    if any(name in OPTIMIZER_ROOTS for name in names):
        return OPTIMIZER
    if str(getattr(leaf, "dtype", "")).startswith("key<"):
        return RANDOM
    if "batch_stats" in names:
        return STATISTICS
    return PARAMS if "params" in names or first in PARAMETERS else OTHER


def _of_variable(nnx: Any, node: Any) -> str:
    """Return the role of a variable of NNX by its type; nothing for the base type, and for what is none."""
    if nnx is None or not isinstance(node, nnx.Variable) or type(node) is nnx.Variable:
        return ""
    kinds = {
        nnx.Param: PARAMS,
        nnx.OptState: OPTIMIZER,
        nnx.BatchStat: STATISTICS,
        nnx.RngState: RANDOM,
        nnx.metrics.MetricState: METRICS,
    }
    return next((role for kind, role in kinds.items() if isinstance(node, kind)), type(node).__name__)
