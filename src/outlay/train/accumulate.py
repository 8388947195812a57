"""Gradient accumulation: sums over microbatches that every device has its share of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.batch_sum import per_device
from outlay.core.errors import ProgramError


def sum_over_microbatches(sums: Callable[[Any], Any], samples: Any, num_microbatches: int) -> Any:
    """`sums(samples)`, taken microbatch by microbatch and added up; every sample is seen once.

    Args:
        sums: from samples to a tree of sums over them.
        samples: a tree of arrays of leading dim B.
        num_microbatches: how many microbatches; it divides B.

    Raises:
        ProgramError: B does not divide.

    Example:
        >>> sum_over_microbatches(lambda x: x.sum(), jnp.arange(8.0), 4)
        Array(28., dtype=float32)
    """
    if num_microbatches == 1:
        return sums(samples)
    _refuse_indivisible(jax.tree.leaves(samples)[0].shape[0], num_microbatches)
    microbatches = jax.tree.map(lambda x: strided(x, num_microbatches), samples)

    def add(so_far: Any, microbatch: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, so_far, sums(microbatch)), None

    # From the values, not their shapes: on Explicit axes the sums' shardings are part of their types.
    found = jax.eval_shape(lambda m: sums(jax.tree.map(lambda x: x[0], m)), microbatches)
    zeros = per_device(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype, out_sharding=s.sharding), found))
    return jax.lax.scan(add, zeros, microbatches)[0]


def strided(x: jax.Array, num_microbatches: int) -> jax.Array:
    """Split the first dim (B, …) into microbatches (n, B/n, …) that take every n-th sample.

    Samples are spread over devices in runs of neighbours. Cutting the batch into runs would put each microbatch on a
    few devices, and the compiler would gather the batch to spread it again; every n-th sample is spread already.

    >>> strided(jnp.arange(6), 2).tolist()
    [[0, 2, 4], [1, 3, 5]]
    """
    size = x.shape[0] // num_microbatches
    return jnp.moveaxis(x.reshape(size, num_microbatches, *x.shape[1:]), 1, 0)


def _refuse_indivisible(num_samples: int, num_microbatches: int) -> None:
    if num_samples % num_microbatches == 0:
        return
    fits = [n for n in range(1, num_samples + 1) if num_samples % n == 0]
    below = max(n for n in fits if n < num_microbatches)
    larger = [n for n in fits if n > num_microbatches]
    choices = " or ".join(f"accumulate={n}" for n in [below, *larger[:1]])
    up = -(-num_samples // num_microbatches) * num_microbatches
    raise ProgramError(
        f"a batch of {num_samples} samples cannot be taken in {num_microbatches} equal microbatches: "
        f"{num_samples} / {num_microbatches} leaves {num_samples % num_microbatches} over\n"
        f"  cure: {choices}, or a batch of {up} samples"
    )
