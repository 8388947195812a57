"""Gradients of a step over its batch: summed, kept per example, or values that travel as gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.constrain import Gradient, constrain, gathering
from outlay.core.paths import flatten_paths, map_with_paths
from outlay.train.microbatches import sum_over_microbatches
from outlay.train.objective import at_least

Sums = Callable[..., tuple[dict[str, jax.Array], Any]]


def summed(
    accumulate: int, model_state: Any, overwritten: Collection[str] = (), share: jax.Array | None = None
) -> Gradient:
    """Return how gradients are summed over a batch, microbatch by microbatch.

    Args:
        accumulate: the number of microbatches.
        model_state: the state of the model before the first one.
        overwritten: the paths of parameters whose gradient is their new value: the largest of all microbatches.
        share: what the loss is multiplied by before it is differentiated; None for nothing.
    """
    compute = functools.partial(
        _summed, accumulate=accumulate, model_state=model_state, overwritten=overwritten, share=share
    )
    return Gradient(compute, lambda path: "max" if path in overwritten else "sum")


def per_example() -> Gradient:
    """Return how each sample's own gradient is computed; gradients then have the leading dim B."""
    return Gradient(_per_example, lambda path: "sample")


def _summed(
    sums: Sums,
    params: Any,
    samples: Any,
    *,
    accumulate: int,
    model_state: Any,
    overwritten: Collection[str],
    share: jax.Array | None,
) -> tuple[Any, dict[str, jax.Array], Any]:
    """Compute gradients of the summed loss, all sums, and the last model state, microbatch by microbatch."""

    def summed_loss(params: Any, samples: Any, model_state: Any) -> tuple[jax.Array, Any]:
        totals, model_state = sums(params, samples, model_state)
        return totals["loss"] if share is None else totals["loss"] * share, (totals, model_state)

    def one(samples: Any, carried: Any) -> tuple[Any, Any]:
        model_state, largest = carried
        grads, (totals, model_state) = jax.grad(summed_loss, has_aux=True)(params, samples, model_state)
        if overwritten:
            new = _leaves_at(overwritten, grads)
            largest = {path: jnp.maximum(largest[path], new[path]) for path in new}
            grads = map_with_paths(lambda path, grad: jnp.zeros_like(grad) if path in new else grad, grads)
        grads = constrain(jax.tree.map(_at_least_float32, grads), "grads", optional=True)
        return (grads, totals), (model_state, largest)

    def placed(sums_so_far: Any) -> Any:
        grads, totals = sums_so_far
        return constrain(grads, "grads", optional=True), totals

    smallest = {path: jnp.full_like(leaf, -jnp.inf) for path, leaf in _leaves_at(overwritten, params).items()}
    carried = (model_state, smallest)
    (grads, totals), (model_state, largest) = sum_over_microbatches(one, samples, accumulate, carried, placed)
    return map_with_paths(lambda path, grad: largest.get(path, grad), grads), totals, model_state


def _per_example(sums: Sums, params: Any, samples: Any) -> tuple[Any, dict[str, jax.Array], None]:
    """Compute the gradient of each sample's own loss, and all sums."""

    def one(sample: Any) -> tuple[Any, dict[str, jax.Array]]:
        def loss(params: Any) -> tuple[jax.Array, Any]:
            totals, _ = sums(params, jax.tree.map(lambda x: x[None], sample), None)
            return totals["loss"], totals

        return jax.grad(loss, has_aux=True)(params)

    with gathering(None):  # an example is its whole batch
        grads, each = jax.vmap(one)(samples)
    return constrain(grads, "grads", optional=True), jax.tree.map(lambda x: jnp.sum(x, axis=0), each), None


def _leaves_at(paths: Collection[str], tree: Any) -> dict[str, Any]:
    return {path: leaf for path, leaf in flatten_paths(tree)[0] if path in paths}


def _at_least_float32(grad: jax.Array) -> jax.Array:
    return grad.astype(at_least(grad.dtype))
