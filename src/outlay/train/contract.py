"""What a batch, the parameters and the loss must be for a training step; each mistake named with its numbers."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.errors import ProgramError
from outlay.core.paths import flatten_paths

RESERVED = ("loss", "weight", "step")
"""Names that the step and the metrics file give themselves."""


def num_samples(batch: Any) -> int:
    """The leading dim that all leaves of a batch share.

    Raises:
        ProgramError: a leaf has none, or they differ.
    """
    shapes = {path: jnp.shape(leaf) for path, leaf in flatten_paths(batch)[0]}
    counted = collections.Counter(shape[0] for shape in shapes.values() if shape)
    if not counted:
        raise ProgramError("the batch has no array with a leading dim, so it holds no samples")
    usual = counted.most_common(1)[0][0]
    odd = {path: shape for path, shape in shapes.items() if shape[:1] != (usual,)}
    if odd:
        lines = "".join(f"\n  batch.{path}: shape {shape}" for path, shape in odd.items())
        raise ProgramError(
            f"every array of a batch holds one entry per sample, here {usual}; {len(odd)} do(es) not:{lines}"
            f"\n  cure: give it leading dim {usual}, or move it out of the batch"
        )
    return usual


def refuse_fixed_params(params: Any) -> None:
    """Raise when parameters cannot be trained because they are no floats, naming each."""
    odd = [
        (path, jnp.result_type(leaf))
        for path, leaf in flatten_paths(params)[0]
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    ]
    if odd:
        lines = "".join(f"\n  params.{path}: {dtype}" for path, dtype in odd)
        raise ProgramError(
            f"{len(odd)} parameter(s) have no gradient, because they are no floats:{lines}"
            "\n  cure: keep them out of params: nnx.split(model, nnx.Param, ...), "
            "eqx.partition(model, eqx.is_inexact_array)"
        )


def refuse_wrong_loss(losses: Any, metrics: Any, expected: tuple[int, ...]) -> None:
    """Raise when a loss function did not return one number per sample, naming each array at fault."""
    if not isinstance(metrics, dict):
        raise ProgramError(
            f"loss(params, batch, keys) must return (losses, metrics) with metrics a dict, "
            f"not a {type(metrics).__name__}\n  cure: return losses, {{}}"
        )
    taken = [name for name in metrics if name in RESERVED]
    if taken:
        raise ProgramError(f"the metrics {taken} have names that the step gives itself {RESERVED}: rename them")
    odd = [
        (name, jnp.shape(array))
        for name, array in [("the losses", losses), *((f"metric {name!r}", a) for name, a in metrics.items())]
        if not isinstance(array, jax.Array) or array.shape != expected
    ]
    if odd:
        lines = "".join(f"\n  {name}: shape {shape}" for name, shape in odd)
        raise ProgramError(
            f"loss(params, batch, keys) must return one number per sample, shape {expected}; {len(odd)} are "
            f"other:{lines}\n  cure: leave the mean over samples to the step, which takes it over the global batch"
        )
