"""Attention whose tokens are split over devices: each computes its own queries, and keys and values come round.

All devices are one computation, with a leading dim that is split over the mesh axis, as in `circular_schedule.py`;
keys and values move on by `jnp.roll`, which XLA compiles to a permute of neighbours. Each piece
of the scores gives outputs and their log-sum-exp, by which pieces are added up. The backward pass goes round once more,
and the gradients of keys and values go with them.
Sources: Liu et al., Ring Attention (arXiv:2310.01889); Dao et al., FlashAttention (arXiv:2205.14135).

Without a mask, or with a window, a device keeps its tokens as they are. With a causal mask the last tokens would have
the most keys to attend to, so devices first exchange halves: of 2n chunks device i computes chunk 2i, its own first,
and chunk 2n - 1 - 2i, the second of its mirror image. Both have as many keys to attend to as those of any other device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from outlay.models.attention.blockwise import HIDDEN, row_sums
from outlay.program.contexts.ring_chunks import Chunks, Pick, Ring, over, picked
from outlay.program.contexts.ring_terms import Terms
from outlay.program.contexts.ring_turns import go_round


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def ring_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: tuple[jax.Array, jax.Array] | None,
    terms: tuple[jax.Array, ...],
    ring: Ring,
) -> tuple[jax.Array, jax.Array]:
    """Compute attention as `blockwise` does, its tokens split over the devices of a mesh axis.

    Args:
        query: (B, T, heads, head_dim); twice the devices divide T if halves are exchanged, else the devices.
        key: (B, S, kv_heads, head_dim).
        value: like `key`.
        segments: the segments of queries (B, T) and of keys (B, S).
        terms: what else is said of the scores, as an `AttentionCall` has it.
        ring: how.

    Returns:
        The outputs, and whether a query attends to anything, (B, T, heads).
    """
    return _forward(query, key, value, segments, terms, ring)[0]


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, segments: Any, terms: tuple[jax.Array, ...], ring: Ring
) -> tuple[Any, Any]:
    chunks = Chunks(ring, query, key, segments)
    split = Terms(chunks, terms, key.shape[2])
    queries, moving = chunks.split(query), chunks.keys(key, value)
    groups = key.shape[2]
    start = []
    for x in queries:
        rows = (*x.shape[:3], groups, x.shape[3] // groups)
        start.append((jnp.zeros((*rows, x.shape[-1]), jnp.float32), jnp.full(rows, HIDDEN, jnp.float32)))

    def add(states: Any, hop: Any, moving: Any) -> tuple[Any, None]:
        for step in chunks.steps(hop):
            mixed, log_sums = chunks.mixed(step, queries, moving, split.at(step, hop))
            before = picked(states, step.query)
            states = _replaced(states, step.query, _merged(*before, mixed, log_sums))
        return [chunks.placed(state) for state in states], None

    states, _ = go_round(chunks, add, [chunks.placed(state) for state in start], moving)
    mixed = chunks.joined([mixed.astype(query.dtype) for mixed, _ in states]).reshape(query.shape)
    log_sums = chunks.joined([log_sums for _, log_sums in states])
    mixed, log_sums = (checkpoint_name(x, "attention") for x in (mixed, log_sums))
    is_seen = (log_sums > HIDDEN / 2).reshape(query.shape[:3])
    return (mixed, is_seen), (query, key, value, segments, terms, mixed, log_sums)


def _backward(ring: Ring, residuals: Any, grads: tuple[jax.Array, Any]) -> tuple[Any, ...]:
    query, key, value, segments, terms, mixed, log_sums = residuals
    grad, _ = grads
    chunks = Chunks(ring, query, key, segments)
    split = Terms(chunks, terms, key.shape[2])
    grouped = (*grad.shape[:2], key.shape[2], -1, grad.shape[3])
    delta = jnp.moveaxis(row_sums(grad.reshape(grouped), mixed.reshape(grouped)), 3, 1)
    rows = [chunks.split(x) for x in (grad.reshape(grouped), log_sums, delta)]
    queries, moving = chunks.split(query), chunks.keys(key, value)

    def add(state: Any, hop: Any, moving: Any) -> tuple[Any, Any]:
        of_queries, of_terms = state
        of_keys = [chunks.zeros(x) for x in moving[0]], [chunks.zeros(x) for x in moving[1]]
        for step in chunks.steps(hop):
            given = [picked(x, step.query) for x in rows]
            here = split.at(step, hop)
            (to_query, *to_keys), to_terms = chunks.gradients(step, queries, moving, given, here)
            of_queries = _added(of_queries, step.query, to_query)
            of_keys = tuple(_added(x, step.key, one) for x, one in zip(of_keys, to_keys, strict=True))
            of_terms = split.added(of_terms, step, hop, here.cropped(to_terms) if here else [])
        return ([chunks.placed(x) for x in of_queries], of_terms), of_keys

    start = [chunks.zeros(x) for x in queries], split.zeros()
    (of_queries, of_terms), of_keys = go_round(chunks, add, start, moving)
    totals = zip((of_queries, *of_keys), (query, key, value), strict=True)
    of_tokens = (chunks.joined([x.astype(one.dtype) for x in of]).reshape(one.shape) for of, one in totals)
    return *of_tokens, None, split.joined(of_terms)


ring_attention.defvjp(_forward, _backward)


def _replaced(chunks: Sequence[Any], pick: Pick, new: Any) -> list[Any]:
    if isinstance(pick, int):
        return [new if number == pick else chunk for number, chunk in enumerate(chunks)]
    return [
        jax.tree.map(lambda old, new, is_it=is_it: jnp.where(over(is_it, old), new, old), chunk, new)
        for chunk, is_it in zip(chunks, (~pick, pick), strict=True)
    ]


def _added(chunks: Sequence[jax.Array], pick: Pick, new: jax.Array) -> list[jax.Array]:
    if isinstance(pick, int):
        return [chunk + new if number == pick else chunk for number, chunk in enumerate(chunks)]
    return [chunk + jnp.where(over(is_it, new), new, 0.0) for chunk, is_it in zip(chunks, (~pick, pick), strict=True)]


def _merged(
    mixed: jax.Array, log_sums: jax.Array, other: jax.Array, other_log_sums: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the outputs of two sets of keys together, and their log-sum-exps."""
    total = jnp.logaddexp(log_sums, other_log_sums)
    weights = (jnp.exp(each - total)[..., None] for each in (log_sums, other_log_sums))
    first, second = weights
    return mixed * first + other * second, total
