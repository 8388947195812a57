"""Which leaves of a tree are arrays, or numbers that JAX takes for arrays; the others, named."""

from __future__ import annotations

from typing import Any

import numpy as np

from outlay.core.error_types import Problem
from outlay.core.paths import flatten_paths


def non_arrays(tree: Any) -> list[Problem]:
    """A problem for every leaf that cannot be laid out because it is no array.

    >>> [problem.where for problem in non_arrays({"w": 1.0, "activation": "relu"})]
    ['activation']
    """
    fix = "keep it out of the tree: eqx.partition(model, eqx.is_array), nnx.split(model), or a static field"
    return [
        Problem("not an array", path or "the tree itself", f"a {type(leaf).__name__}: {leaf!r:.60}", fix)
        for path, leaf in flatten_paths(tree)[0]
        if not is_array(leaf)
    ]


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, or a number that JAX takes for one."""
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "OSU":  # objects and texts
        return False
    return isinstance(leaf, bool | int | float | complex) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
