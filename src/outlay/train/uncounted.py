"""Samples of weight 0 do not count: nothing that they hold reaches the loss, the gradients or the statistics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from outlay.core.paths import flatten_paths, map_with_paths
from outlay.train.objective import WEIGHT


def without_uncounted(batch: Any, weights: jax.Array) -> Any:
    """Replace what samples of weight 0 hold by what the first sample that counts holds.

    To multiply their losses by 0 is not enough: where a loss is not finite (a mean over no token, the logarithm of 0),
    the backward pass has a 0 times infinity before it reaches the parameters, and one such sample makes every gradient
    NaN. Constants in their place could be where the loss is not finite, too.

    Args:
        batch: a tree of arrays with leading dim B; its `weight` stays as it is.
        weights: the weight of each sample, (B,).

    Example:
        >>> weight = jnp.array([0.0, 1.0, 1.0])
        >>> without_uncounted({"x": jnp.array([jnp.nan, 2.0, 3.0]), "weight": weight}, weight)["x"].tolist()
        [2.0, 2.0, 3.0]
    """
    if all(path != WEIGHT for path, _ in flatten_paths(batch)[0]):
        return batch
    counts = weights != 0
    # Computed from the weights, these are split as they are, on Explicit axes too.
    number = jnp.arange(len(weights)) + jnp.zeros_like(weights, jnp.int32)
    is_first = counts & (number == jnp.min(jnp.where(counts, number, jnp.full_like(number, len(weights)))))

    def one(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        # A sum, of which all but one entry are 0, splits over devices in every mode, as an index would not.
        first = jnp.sum(jnp.where(_like(x, is_first, 0), x, jnp.zeros_like(x)), axis=0, dtype=x.dtype)
        return jnp.where(_like(x, counts, 0), x, _like(x, first, *range(1, x.ndim)))

    return map_with_paths(lambda path, x: x if path == WEIGHT else one(x), batch)


def _like(x: jax.Array, part: jax.Array, *dims: int) -> jax.Array:
    """Return an array that has some of the dims of `x`, repeated along the others, and split as `x` is."""
    sharding = jax.typeof(x).sharding
    is_typed = AxisType.Explicit in sharding.mesh.axis_types
    return jax.lax.broadcast_in_dim(part, x.shape, dims, out_sharding=sharding if is_typed else None)
