"""The batches that a proof is made with: the user's, or made up from their shapes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.core.errors import ProgramError
from outlay.core.paths import map_with_paths
from outlay.report.verify.host import is_key

MADE_UP = "made up: floats normal, integers zero, weights one"


def take(batches: Any, num_steps: int) -> list[Any]:
    """The first batches of something that gives the batch of a step as `batches[step]`, or that is iterable.

    Raises:
        ProgramError: there are fewer than that, or it is a single batch.
    """
    if isinstance(batches, Mapping):
        raise ProgramError("batches holds one batch a step, but a single batch was passed\n  cure: batches=[batch] * 3")
    if hasattr(batches, "__getitem__"):
        found = []
        for step in range(num_steps):
            try:
                found.append(batches[step])
            except LookupError:
                break
    else:
        found = list(itertools.islice(batches, num_steps))
    if len(found) < num_steps:
        raise ProgramError(
            f"{num_steps} steps need {num_steps} batches, and there are {len(found)}\n"
            f"  cure: steps={max(len(found), 1)}, or more batches"
        )
    return found


def make_up(shapes: Any, num_steps: int, seed: int) -> list[Any]:
    """Batches of given shapes, on the host. Integers are zero, because a label or an index must exist."""
    rng = np.random.default_rng(seed)

    def one(path: str, leaf: Any) -> Any:
        if is_key(leaf):
            bits = jax.eval_shape(jax.random.key_data, leaf)
            return rng.integers(2**32, size=bits.shape, dtype=np.uint32)
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return np.zeros(leaf.shape, leaf.dtype)
        # A step from `outlay.train_step` divides by the sum of the weights.
        return (np.ones(leaf.shape) if path == "weight" else rng.normal(size=leaf.shape)).astype(leaf.dtype)

    return [map_with_paths(one, shapes) for _ in range(num_steps)]


def nudged(tree: Any, seed: int) -> Any:
    """Every float entry moved by one unit in its last digit, up or down: as much as rounding would."""
    rng = np.random.default_rng(seed)

    def one(leaf: np.ndarray) -> np.ndarray:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        signs = rng.choice((-1.0, 1.0), size=leaf.shape)
        return (leaf.astype(np.float64) * (1 + signs * float(jnp.finfo(leaf.dtype).eps))).astype(leaf.dtype)

    return jax.tree.map(one, tree)
