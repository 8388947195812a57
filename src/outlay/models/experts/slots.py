"""Where tokens stand in the arrays that experts read: so many slots for each expert, or whole blocks without a limit.

A choice is a pair of a token and an expert that it has chosen; choices are numbered token by token, the best expert of
a token first. An expert takes its choices in this order, so that which are dropped does not depend on the mesh. A slot
that no choice takes holds some other token, whose result nobody reads: on zeros an expert might give NaN, and NaN times
a cotangent of zero is NaN.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from outlay.models.experts.routing import num_choices

LARGEST_BLOCK, SMALLEST_BLOCK = 512, 8


class Slots(NamedTuple):
    """The slots of a group of tokens.

    Attributes:
        tokens: the token in each slot, (rows, slots of a row) int32.
        slots: the slot of each choice, (T, top_k) int32, counted over all rows.
        is_sent: whether a choice has a slot, (T, top_k).
        experts: the expert that reads each row, (rows,) int32.
    """

    tokens: jax.Array
    slots: jax.Array
    is_sent: jax.Array
    experts: jax.Array


def with_capacity(experts: jax.Array, num_experts: int, capacity: int) -> Slots:
    """Give each expert a row of equally many slots; choices beyond them are dropped.

    Args:
        experts: the experts of each token, (T, top_k).
        num_experts: E.
        capacity: the slots of an expert.

    Example:
        >>> slots = with_capacity(jnp.array([[1], [1], [0], [1]]), 2, 2)
        >>> slots.tokens[1].tolist(), slots.is_sent[:, 0].tolist()
        ([0, 1], [True, True, True, False])
    """
    ordered = _Ordered(experts, num_experts)
    tokens = ordered.tokens(ordered.starts[:, None] + jnp.arange(capacity)[None])
    is_sent = ordered.places < capacity
    slots = jnp.where(is_sent, experts * capacity + ordered.places, 0)
    return Slots(tokens, slots, is_sent, jnp.arange(num_experts))


def in_blocks(experts: jax.Array, num_experts: int, block: int) -> Slots:
    """Give each expert as many whole blocks, the rows here, as its choices fill; nothing is dropped.

    Args:
        experts: the experts of each token, (T, top_k).
        num_experts: E.
        block: the slots of a block.

    Example:
        >>> slots = in_blocks(jnp.array([[1], [1], [0], [1]]), 2, 2)
        >>> slots.experts.tolist(), slots.slots[:, 0].tolist()
        ([0, 1, 1, 1], [2, 3, 0, 4])
    """
    ordered, num = _Ordered(experts, num_experts), experts.size
    blocks = -(-ordered.counts // block)
    ends = jnp.cumsum(blocks)
    firsts = ends - blocks
    # The most that there can be: each expert that was chosen at all begins one.
    rows = jnp.arange(num // block + min(num_experts, num))
    of_row = jnp.minimum((ends[None] <= rows[:, None]).sum(axis=1, dtype=jnp.int32), num_experts - 1)
    first_ranks = pick(ordered.starts, of_row) + (rows - pick(firsts, of_row)) * block
    tokens = ordered.tokens(first_ranks[:, None] + jnp.arange(block)[None])
    slots = pick(firsts, experts) * block + ordered.places
    return Slots(tokens, slots, jnp.ones_like(slots, dtype=bool), of_row)


def block_size(num_choices: int, num_experts: int) -> int:
    """Return the slots of a block: a quarter of what an expert gets on average, so that few slots stay empty.

    >>> block_size(16 * 4096 * 2, 8), block_size(4096 * 8, 128), block_size(10, 4)
    (512, 64, 8)
    """
    quarter = max(num_choices // (4 * num_experts), 1)
    return min(max(1 << (quarter.bit_length() - 1), SMALLEST_BLOCK), LARGEST_BLOCK)


def capacity_of(factor: float, num_tokens: int, top_k: int, num_experts: int) -> int:
    """Return how many tokens of a group an expert takes.

    >>> capacity_of(1.25, 4096, 2, 8), capacity_of(100.0, 4096, 2, 8), capacity_of(0.01, 4, 1, 8)
    (1280, 4096, 1)
    """
    # Rounded first: 1.1 * 10 is a little more than 11.
    return min(max(math.ceil(round(factor * num_tokens * top_k / num_experts, 6)), 1), num_tokens)


def pick(values: jax.Array, at: jax.Array) -> jax.Array:
    """Return entries of dim 0 by numbers that are known to be in bounds."""
    return values.at[at].get(mode="promise_in_bounds")


class _Ordered:
    """Choices ordered by expert.

    Attributes:
        counts: choices of each expert, (E,).
        starts: the rank of the first choice of each expert, (E,).
        places: how many choices of the same expert come before each choice, (T, top_k).
    """

    def __init__(self, experts: jax.Array, num_experts: int) -> None:
        flat = experts.reshape(-1)
        self._order = jnp.argsort(flat, stable=True)
        self._top_k = experts.shape[1]
        self.counts = num_choices(experts, num_experts)
        self.starts = jnp.cumsum(self.counts) - self.counts
        self.places = (jnp.argsort(self._order) - pick(self.starts, flat)).reshape(experts.shape)

    def tokens(self, ranks: jax.Array) -> jax.Array:
        """Return the tokens of choices by their ranks, of the last choice for ranks beyond it."""
        return pick(self._order, jnp.minimum(ranks, len(self._order) - 1)) // self._top_k
