"""Split a batch into microbatches, and sum over them one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.constrain import per_device
from outlay.core.error_types import ProgramError
from outlay.program.compiler_options import MICROBATCHES


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
    microbatches = jax.tree.map(lambda x: strided(x, num_microbatches), samples)

    def add(so_far: Any, microbatch: Any) -> tuple[Any, None]:
        total, carried = so_far
        shapes, carried = sums(microbatch, carried)
        return (placed(jax.tree.map(jnp.add, total, shapes)), carried), None

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
