"""Sums of rows, in an order that does not depend on how many rows there are."""

from __future__ import annotations

import jax
import jax.numpy as jnp

LANES = 16
MOST_BLOCKS = 64


def sum_rows(values: jax.Array) -> jax.Array:
    """The sum of each row of a matrix, bit for bit the same whatever the other rows are.

    XLA chooses the order of a reduction by the size of the whole array, so that neurons computed in smaller groups
    would sum in another order. Here blocks of columns are added one after the other, element by element, which also
    fuses with what makes the values; then the lanes that are left are added in halves.

    Args:
        values: a matrix (rows, columns).
    """
    num_columns = values.shape[1]
    lanes = LANES
    while num_columns > MOST_BLOCKS * lanes:
        lanes *= 2
    padded = jnp.pad(values, ((0, 0), (0, -num_columns % lanes)))
    total = padded[:, :lanes]
    for start in range(lanes, padded.shape[1], lanes):
        total = total + padded[:, start : start + lanes]
    # Else everything that reads the sum would compute it anew.
    total = jax.lax.optimization_barrier(total)
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]
