"""Gradients of a step over its batch, microbatch by microbatch: sums, one per example, or values in their place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.constrain import Gradient, constrain, per_device, use_gather
from outlay.core.error_types import ProgramError
from outlay.core.paths import flatten_paths, map_with_paths
from outlay.program.compiler_options import MICROBATCHES
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
    return Gradient(compute, lambda path: "max" if path in overwritten else "sum", accumulate)


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

    with use_gather(None):  # an example is its whole batch
        grads, each = jax.vmap(one)(samples)
    return constrain(grads, "grads", optional=True), jax.tree.map(lambda x: jnp.sum(x, axis=0), each), None


def _leaves_at(paths: Collection[str], tree: Any) -> dict[str, Any]:
    return {path: leaf for path, leaf in flatten_paths(tree)[0] if path in paths}


def _at_least_float32(grad: jax.Array) -> jax.Array:
    return grad.astype(at_least(grad.dtype))


def sum_over_microbatches(
    sums: Callable[[Any, Any], tuple[Any, Any]],
    samples: Any,
    num_microbatches: int,
    carried: Any = None,
    placed: Callable[[Any], Any] = lambda sums_so_far: sums_so_far,
) -> tuple[Any, Any]:
    """Sum `sums(samples, carried)` over microbatches; every sample counts once.

    Args:
        sums: maps samples and a carry to a tree of sums over the samples and the next carry.
        samples: a tree of arrays with leading dim B.
        num_microbatches: the number of microbatches; it must divide B.
        carried: the initial carry.
        placed: constrains where the sums live.

    Returns:
        The sums, and the last carry.

    Raises:
        ProgramError: `num_microbatches` does not divide B.

    Example:
        >>> sum_over_microbatches(lambda x, last: (x.sum(), x[-1]), jnp.arange(8.0), 4, 0.0)
        (Array(28., dtype=float32), Array(7., dtype=float32))
    """
    carried = per_device(jax.tree.map(jnp.asarray, carried))
    if num_microbatches == 1:
        return sums(samples, carried)
    _check_divisible(jax.tree.leaves(samples)[0].shape[0], num_microbatches)
    from outlay.train.added_in_loops import added

    microbatches = jax.tree.map(lambda x: strided(x, num_microbatches), samples)

    def add(so_far: Any, microbatch: Any) -> tuple[Any, None]:
        total, carried = so_far
        total, carried = added(sums, total, microbatch, carried)
        return (placed(total), carried), None

    # Evaluate on the values, not on their shapes: on Explicit axes, shardings are part of the types.
    shapes = jax.eval_shape(lambda m, c: sums(jax.tree.map(lambda x: x[0], m), c)[0], microbatches, carried)
    zeros = per_device(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype, out_sharding=s.sharding), shapes))
    # By this name a program's compiler options know the loop, which XLA must not pipeline (decision 54).
    with jax.named_scope(MICROBATCHES):
        (total, carried), _ = jax.lax.scan(add, (zeros, carried), microbatches)
        # Constrained here too: the compiler would otherwise let the loop carry the sums as their reader takes them.
        return placed(total), carried


def strided(x: jax.Array, num_microbatches: int) -> jax.Array:
    """Split the first dim (B, …) into microbatches (n, B/n, …) that take every n-th sample.

    Each device has a contiguous block of samples. Contiguous microbatches would each live on a few devices, and the
    compiler would gather the batch to spread them again; every n-th sample is already spread.

    >>> strided(jnp.arange(6), 2).tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    size = x.shape[0] // num_microbatches
    return jnp.moveaxis(x.reshape(size, num_microbatches, *x.shape[1:]), 1, 0)


def _check_divisible(num_samples: int, num_microbatches: int) -> None:
    if num_samples % num_microbatches == 0:
        return
    fits = [n for n in range(1, num_samples + 1) if num_samples % n == 0]
    below = max(n for n in fits if n < num_microbatches)
    larger = [n for n in fits if n > num_microbatches]
    choices = " or ".join(f"accumulate={n}" for n in [below, *larger[:1]])
    up = -(-num_samples // num_microbatches) * num_microbatches
    raise ProgramError(
        f"a batch of {num_samples} samples cannot be split into {num_microbatches} equal microbatches: "
        f"{num_samples} / {num_microbatches} leaves {num_samples % num_microbatches} over\n"
        f"  fix: {choices}, or a batch of {up} samples"
    )
