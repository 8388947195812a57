"""Add the gradients of layers, tick by tick, where the backward loop over the layers of a stage makes them.

What a loop reads of arrays that no turn changes has a gradient of their shape: each tick stacks up the gradients of its
layers, from zeros on, and adds the stack to the sums. Here the sums are what the backward loops carry, so that a turn
adds its layer's gradient to its entry. Forward they are carried too, as zeros that nobody reads, which XLA drops.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_vjp
def sums_of(x: jax.Array) -> jax.Array:
    """Return zeros whose gradient is that of an array: what `noted` has added to them."""
    return jnp.zeros_like(x)


sums_of.defvjp(lambda x: (sums_of(x), None), lambda _, sums: (sums,))


@jax.custom_vjp
def noted(row: jax.Array, sums: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return an entry of an array and the sums of its gradient, to which the gradient of the entry is added.

    Args:
        row: the entry, whose own gradient is none.
        sums: from `sums_of`.
        number: which entry it is.
    """
    return row, sums


def _forward(row: jax.Array, sums: jax.Array, number: jax.Array) -> Any:
    return (row, sums), number


def _backward(number: jax.Array, gradients: tuple[jax.Array, jax.Array]) -> tuple[Any, ...]:
    of_row, so_far = gradients
    return jnp.zeros_like(of_row), _added(so_far, of_row, number), None


noted.defvjp(_forward, _backward)


@jax.custom_batching.custom_vmap
def _added(sums: jax.Array, row: jax.Array, number: jax.Array) -> jax.Array:
    return _added_at(sums, row[None], number, 0)


@_added.def_vmap
def _added_on_stages(
    size: int, is_batched: list[bool], sums: jax.Array, rows: jax.Array, number: jax.Array
) -> tuple[jax.Array, bool]:
    """Add the rows of all stages: one slice, which `jax.vmap` would make a scatter."""
    return _added_at(sums, rows[:, None], number, 1), True


def _added_at(sums: jax.Array, rows: jax.Array, number: jax.Array, dim: int) -> jax.Array:
    before = jax.lax.dynamic_slice_in_dim(sums, number, 1, dim)
    return jax.lax.dynamic_update_slice_in_dim(sums, before + rows, number, dim)
