"""Sums of rows, in an order that does not depend on how many rows there are."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

LANES = 16
MOST_BLOCKS = 64


def sum_rows(values: Callable[[slice], jax.Array], num_columns: int) -> jax.Array:
    """The sum of each row of a matrix, bit for bit the same whatever the other rows are.

    XLA chooses the order of a reduction by the size of the whole array, so that neurons computed in smaller groups
    would sum in another order. Here blocks of columns are added one after the other, element by element; then the lanes
    that are left are added in halves. Each block is made where it is added: a matrix of all would be written to memory,
    and read back.

    Args:
        values: some columns of the matrix, (rows, those columns).
        num_columns: how many it has.
    """
    lanes = LANES
    while num_columns > MOST_BLOCKS * lanes:
        lanes *= 2
    total = _padded(values(slice(0, min(lanes, num_columns))), lanes)
    for start in range(lanes, num_columns, lanes):
        total = total + _padded(values(slice(start, min(start + lanes, num_columns))), lanes)
    # Else everything that reads the sum would compute it anew.
    total = jax.lax.optimization_barrier(total)
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]


def _padded(block: jax.Array, lanes: int) -> jax.Array:
    """A block with zeros in the lanes that it lacks."""
    return jnp.pad(block, ((0, 0), (0, lanes - block.shape[1])))
