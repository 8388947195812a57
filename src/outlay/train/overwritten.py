"""Parameters that are overwritten with their gradient: statistics of FP8, which no optimizer may see.

A layer in FP8 returns its new scales and histories of largest values where a gradient would stand (Flax's collection
`_overwrite_with_gradient`, Haliax's `OverwriteWithGradient`). They are values, so nothing may divide or add them: what
the whole batch gives is the largest of what its parts give.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from outlay.core.error_types import ProgramError
from outlay.core.paths import flatten_paths, map_with_paths, split_path, under
from outlay.core.quantities import counted

_COLLECTION = "_overwrite_with_gradient"
_NODE = "OverwriteWithGradient"


def overwritten_paths(params: Any) -> frozenset[str]:
    """Return the paths of the parameters that are overwritten with their gradient.

    >>> sorted(overwritten_paths({"params": {"w": 1.0}, "_overwrite_with_gradient": {"scale": 1.0}}))
    ['_overwrite_with_gradient.scale']
    """
    paths = {path for path, _ in flatten_paths(params)[0] if _COLLECTION in split_path(path)}
    for root, node in flatten_paths(params, is_leaf=_is_node)[0]:
        if _is_node(node):
            paths |= {under(root, path) for path, _ in flatten_paths(node)[0]}
    return frozenset(paths)


def _is_node(node: Any) -> bool:
    return any(kind.__name__ == _NODE for kind in type(node).__mro__)


def without_overwritten(params: Any, paths: Collection[str] | None = None) -> Any:
    """Return parameters, or their gradients, as an optimizer may see them: zero where they are overwritten.

    With zeros for gradient and value, no norm, weight decay or distance of any optimizer is another for them.

    Args:
        params: the parameters.
        paths: the overwritten ones; None for `overwritten_paths`.
    """
    at = overwritten_paths(params) if paths is None else paths
    return map_with_paths(lambda path, leaf: jnp.zeros_like(leaf) if path in at else leaf, params) if at else params


def overwrite(params: Any, new: Any, paths: Collection[str]) -> Any:
    """Return parameters with the leaves at some paths from another tree of the same structure."""
    if not paths:
        return params
    values: Mapping[str, jax.Array] = dict(flatten_paths(new)[0])
    return map_with_paths(lambda path, leaf: values[path].astype(leaf.dtype) if path in paths else leaf, params)


def check_overwritten(
    paths: Collection[str], params: Any, *, accumulate: int, groups: int | None, reduction: str | None
) -> None:
    """Raise for a step in which layers return statistics of less than the whole batch.

    Args:
        paths: the paths of the overwritten parameters.
        params: all parameters.
        accumulate: the number of microbatches.
        groups: the number of groups.
        reduction: how the loss reduces a batch.

    Raises:
        ProgramError: with the options to leave out.
    """
    odd = {
        f"groups={groups}": groups is not None,
        f'reduction="mean" with accumulate={accumulate}': reduction == "mean" and accumulate > 1,
        "optax.lookahead": isinstance(params, optax.LookaheadParams),
    }
    if wrong := [words for words, is_used in odd.items() if is_used]:
        are = f"{counted(len(paths), 'parameter')} such as params.{min(paths)}"
        raise ProgramError(
            f"{are} {'is' if len(paths) == 1 else 'are'} overwritten with a gradient, which is a value of the whole "
            f"batch, and {' and '.join(wrong)} would add several of them\n"
            "  fix: leave it out, and return one loss per sample"
        )
