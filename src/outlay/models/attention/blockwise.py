"""Blockwise attention in plain JAX, for any hardware: memory is linear in the sequence length.

One loop runs over the pairs of query and key blocks that attend to each other, all pairs of a query block in a row. For
each query it keeps the running maximum of the scores, the sum of their exponentials, and the weighted values (online
softmax). Fully masked pairs are not in the loop. The backward pass visits the same pairs and recomputes the scores from
the log-sum-exp of each query.
Source: Dao et al. (2022), FlashAttention (arXiv:2205.14135), algorithms 1 and 4.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from outlay.core.jax_tracing import varying_axes

BLOCK = 512
"""The queries and keys of a block: its scores fit in a cache, and its products are large enough to be efficient."""

HIDDEN = -1e30
"""The score of a masked key; finite, because -inf minus -inf is NaN in a fully masked block."""


@dataclass(frozen=True)
class Mask:
    """The keys that a query attends to; all conditions must hold.

    Attributes:
        causal: no key after the query.
        window: only this many keys up to the query, itself included.
    """

    causal: bool = False
    window: int | None = None

    def visible(self, queries: Any, keys: Any) -> Any:
        """Return whether queries at some positions attend to keys at some positions; the arrays broadcast.

        Positions may be computed ones, such as those of a device's own tokens.
        """
        seen = keys <= queries if self.causal else keys == keys
        return seen if self.window is None else seen & (queries - keys < self.window)

    def num_seen(self, num_queries: int, num_keys: int) -> int:
        """Count the pairs of a query and a key that are not masked.

        >>> Mask().num_seen(4, 4), Mask(causal=True).num_seen(4, 4), Mask(causal=True, window=2).num_seen(4, 4)
        (16, 10, 7)
        """
        if not self.causal:
            return num_queries * num_keys
        return sum(min(query + 1, num_keys, self.window or num_keys) for query in range(num_queries))

    def pairs(self, num_queries: int, num_keys: int, block: int, ahead_by: int = 0) -> list[tuple[int, int]]:
        """List the pairs of query and key blocks that are not fully masked.

        Args:
            num_queries: the number of queries.
            num_keys: the number of keys.
            block: the queries and keys of a block.
            ahead_by: the position of the first query, where the first key is at 0.

        >>> Mask(causal=True).pairs(8, 8, 4)
        [(0, 0), (1, 0), (1, 1)]
        >>> Mask(causal=True, window=2).pairs(12, 12, 4)
        [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]
        >>> Mask(causal=True, window=2).pairs(8, 8, 4, ahead_by=8)
        [(0, 1)]
        """
        pairs = []
        for i in range(-(-num_queries // block)):
            first, last = i * block + ahead_by, min((i + 1) * block, num_queries) - 1 + ahead_by
            for j in range(-(-num_keys // block)):
                first_key, last_key = j * block, min((j + 1) * block, num_keys) - 1
                ahead = self.causal and first_key > last
                behind = self.window is not None and first - last_key >= self.window
                if not ahead and not behind:
                    pairs.append((i, j))
        return pairs


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def blockwise(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: tuple[jax.Array, jax.Array] | None,
    mask: Mask,
    scale: float,
    block: int = BLOCK,
) -> jax.Array:
    """Compute attention; scores and their softmax are float32.

    Args:
        query: (B, T, heads, head_dim).
        key: (B, S, kv_heads, head_dim); query head h attends through key head h // (heads / kv_heads).
        value: like `key`.
        segments: the segments of queries (B, T) and of keys (B, S): a query attends only to keys of its own segment.
        mask: further conditions.
        scale: the factor of the scores.
        block: the queries and keys of a block.

    Returns:
        (B, T, heads, head_dim) in the query's dtype; 0 for a query that attends to nothing.
    """
    return _forward(query, key, value, segments, mask, scale, block)[0]


def _forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: tuple[jax.Array, jax.Array] | None,
    mask: Mask,
    scale: float,
    block: int,
) -> tuple[jax.Array, Any]:
    blocks = Blocks(query, key, value, segments, mask, scale, block)
    mixed, log_sums = blocks.mixed(query.dtype)
    # With these names, a remat policy can save both outputs, and the backward pass need not repeat this loop.
    mixed = checkpoint_name(mixed[:, : query.shape[1]].reshape(query.shape), "attention")
    log_sums = checkpoint_name(log_sums, "attention")
    return mixed, (query, key, value, segments, mixed, log_sums)


def _backward(mask: Mask, scale: float, block: int, residuals: Any, grad: jax.Array) -> tuple[Any, ...]:
    query, key, value, segments, mixed, log_sums = residuals
    blocks = Blocks(query, key, value, segments, mask, scale, block)
    grads = blocks.padded_queries(grad)
    totals, _ = blocks.gradients(grads, log_sums, row_sums(grads, blocks.padded_queries(mixed)))
    gradients = zip(totals, (query, key, value), strict=True)
    return *(total[:, : x.shape[1]].reshape(x.shape).astype(x.dtype) for total, x in gradients), None


blockwise.defvjp(_forward, _backward)


def row_sums(grads: jax.Array, mixed: jax.Array) -> jax.Array:
    """Return the gradient of each query's log-sum-exp, for the backward pass of the softmax.

    Args:
        grads: the gradients of the outputs, (B, T, kv_heads, shared, head_dim).
        mixed: the outputs.

    Returns:
        (B, kv_heads, shared, T), float32.
    """
    return jnp.einsum("btkgd,btkgd->bkgt", *(x.astype(jnp.float32) for x in (grads, mixed)))


def _added(total: jax.Array, x: jax.Array, at: jax.Array) -> jax.Array:
    """Add `x` to a total along its second dim, starting at `at`."""
    so_far = jax.lax.dynamic_slice_in_dim(total, at, x.shape[1], axis=1)
    return jax.lax.dynamic_update_slice_in_dim(total, so_far + x, at, axis=1)


class Blocks:
    """The inputs padded to whole blocks, and access to their blocks.

    Args:
        query: as for `blockwise`, and so are the next five.
        key: the keys.
        value: the values.
        segments: the segments of queries and of keys.
        mask: further conditions.
        scale: the factor of the scores.
        block: the queries and keys of a block.
        ahead_by: the position of the first query, where the first key is at 0; or that of each sample, (B,), and then
            no pair of blocks is left out.
        terms: changes the scores of two blocks, and adds up its own gradients.
    """

    def __init__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        segments: tuple[jax.Array, jax.Array] | None,
        mask: Mask,
        scale: float,
        block: int,
        ahead_by: Any = 0,
        terms: Any = None,
    ) -> None:
        self.num_keys = key.shape[1]
        self.num_rows, self.num_cols = min(block, query.shape[1]), min(block, self.num_keys)
        self.mask, self.scale, self._ahead_by, self.terms = mask, scale, ahead_by, terms
        self._groups = key.shape[2]
        self.query = self.padded_queries(query)
        self.key, self.value = (_filled(x, self.num_cols) for x in (key, value))
        self.segments = segments and (_filled(segments[0], self.num_rows), _filled(segments[1], self.num_cols))
        lengths = query.shape[1], self.num_keys, block
        pairs = mask.pairs(*lengths, ahead_by) if isinstance(ahead_by, int) else Mask().pairs(*lengths)
        firsts = [i == 0 or pairs[i - 1][0] != pair[0] for i, pair in enumerate(pairs)]
        self.pairs: Any = np.array(
            [(*pair, first) for pair, first in zip(pairs, firsts, strict=True)], np.int32
        ).reshape(-1, 3)

    def padded_queries(self, x: jax.Array) -> jax.Array:
        """Reshape (B, T, heads, dim) to (B, padded T, kv_heads, shared, dim)."""
        filled = _filled(x, self.num_rows)
        return filled.reshape(*filled.shape[:2], self._groups, -1, x.shape[-1])

    def padded_rows(self, x: jax.Array) -> jax.Array:
        """Pad what belongs to queries (B, T, ...) to whole blocks."""
        return _filled(x, self.num_rows)

    def alike(self, start: Any) -> Any:
        """Mark a loop's initial carry as varying over the same mesh axes as the inputs, as `jax.shard_map` requires."""
        axes = tuple(varying_axes(self.query) | varying_axes(self.key) | varying_axes(self.value))
        return jax.tree.map(lambda x: jax.lax.pcast(x, axes, to="varying"), start) if axes else start

    def rows_of(self, x: jax.Array, i: jax.Array, axis: int = 1) -> jax.Array:
        """Slice the rows of a query block."""
        return jax.lax.dynamic_slice_in_dim(x, i * self.num_rows, self.num_rows, axis=axis)

    queries_of = rows_of

    def keys_of(self, x: jax.Array, j: jax.Array) -> jax.Array:
        """Slice the rows of a key block."""
        return jax.lax.dynamic_slice_in_dim(x, j * self.num_cols, self.num_cols, axis=1)

    def scores(self, i: jax.Array, j: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute the scores (B, kv_heads, shared, queries, keys) of two blocks, and their mask."""
        queries, keys = self.queries_of(self.query, i), self.keys_of(self.key, j)
        scores = jnp.einsum("bqkgd,bskd->bkgqs", queries, keys, preferred_element_type=jnp.float32) * self.scale
        ahead_by = self._ahead_by if isinstance(self._ahead_by, int) else self._ahead_by.reshape(-1, 1, 1, 1, 1)
        rows = ahead_by + i * self.num_rows + jnp.arange(self.num_rows).reshape(1, 1, 1, -1, 1)
        cols = j * self.num_cols + jnp.arange(self.num_cols).reshape(1, 1, 1, 1, -1)
        seen = self.mask.visible(rows, cols) & (cols < self.num_keys)
        if self.segments is not None:
            of_queries, of_keys = self.queries_of(self.segments[0], i), self.keys_of(self.segments[1], j)
            seen = seen & (of_queries[:, None, None, :, None] == of_keys[:, None, None, None])
        scores = jnp.where(seen, scores, HIDDEN)
        return (scores, seen) if self.terms is None else self.terms.applied(scores, i, j)

    def mixed(self, dtype: Any) -> tuple[jax.Array, jax.Array]:
        """Compute the outputs (B, padded T, kv_heads, shared, head_dim), and each query's log-sum-exp.

        Args:
            dtype: the dtype of the outputs.

        Returns:
            The outputs, and (B, kv_heads, shared, padded T) float32.
        """
        batch, _, groups, shared, dim = self.query.shape
        own = (batch, groups, shared, self.num_rows)

        def add(carry: Any, pair: jax.Array) -> tuple[Any, None]:
            mixed, log_sums, highest, total, sums = carry
            i, j, is_first = pair[0], pair[1], pair[2].astype(bool)
            highest, total, sums = (
                jnp.where(is_first, start, x) for x, start in ((highest, HIDDEN), (total, 0.0), (sums, 0.0))
            )
            scores, seen = self.scores(i, j)
            higher = jnp.maximum(highest, scores.max(axis=-1))
            weights = jnp.where(seen, jnp.exp(scores - higher[..., None]), 0.0)
            shrink = jnp.exp(highest - higher)
            total = total * shrink + weights.sum(axis=-1)
            values = self.keys_of(self.value, j)
            product = jnp.einsum(
                "bkgqs,bskd->bkgqd", weights.astype(values.dtype), values, preferred_element_type=jnp.float32
            )
            sums = sums * shrink[..., None] + product
            # Write after every pair: cheaper than a branch, and the last pair of a query block overwrites the others.
            divisor = jnp.where(total == 0, 1.0, total)
            done = jnp.moveaxis(sums / divisor[..., None], 3, 1).astype(dtype)
            mixed = jax.lax.dynamic_update_slice_in_dim(mixed, done, i * self.num_rows, axis=1)
            log_sum = higher + jnp.log(divisor)
            log_sums = jax.lax.dynamic_update_slice_in_dim(log_sums, log_sum, i * self.num_rows, axis=3)
            return (mixed, log_sums, higher, total, sums), None

        start = (
            jnp.zeros(self.query.shape, dtype),
            jnp.full((*own[:3], self.query.shape[1]), HIDDEN, jnp.float32),  # of queries that are in no pair
            jnp.full(own, HIDDEN, jnp.float32),
            jnp.zeros(own, jnp.float32),
            jnp.zeros((*own, dim), jnp.float32),
        )
        # One loop over all pairs has a known trip count, so that its work is counted exactly. In two nested loops, the
        # bound of the inner one would depend on the outer one and be unknown (decision 22).
        (mixed, log_sums, *_), _ = jax.lax.scan(add, self.alike(start), self.pairs)
        return mixed, log_sums

    def gradients(self, grads: jax.Array, log_sums: jax.Array, delta: jax.Array) -> tuple[Any, Any]:
        """Compute the gradients of queries, keys and values, and of terms, padded and in float32.

        Args:
            grads: the gradients of the outputs, padded, (B, padded T, kv_heads, shared, head_dim).
            log_sums: each query's log-sum-exp, (B, kv_heads, shared, padded T).
            delta: the `row_sums`, padded.
        """

        def add(carry: Any, pair: jax.Array) -> tuple[Any, None]:
            i, j = pair[0], pair[1]
            scores, seen = self.scores(i, j)
            weights = jnp.where(seen, jnp.exp(scores - self.rows_of(log_sums, i, axis=3)[..., None]), 0.0)
            queries, keys = self.queries_of(self.query, i), self.keys_of(self.key, j)
            values, own_grads = self.keys_of(self.value, j), self.queries_of(grads, i)
            exact = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
            value_grads = exact("bkgqs,bqkgd->bskd", weights.astype(grads.dtype), own_grads)
            score_grads = exact("bqkgd,bskd->bkgqs", own_grads, values) - self.rows_of(delta, i, axis=3)[..., None]
            of_scores = weights * score_grads
            score_grads = (of_scores * self.scale).astype(self.query.dtype)
            query_grads = exact("bkgqs,bskd->bqkgd", score_grads, keys)
            key_grads = exact("bkgqs,bqkgd->bskd", score_grads, queries)
            pieces = (
                (query_grads, i * self.num_rows),
                (key_grads, j * self.num_cols),
                (value_grads, j * self.num_cols),
            )
            totals, of_terms = carry
            totals = [_added(total, x, at) for total, (x, at) in zip(totals, pieces, strict=True)]
            return (totals, of_terms if self.terms is None else self.terms.added(of_terms, of_scores, i, j)), None

        start = [jnp.zeros(x.shape, jnp.float32) for x in (self.query, self.key, self.value)]
        start = start, () if self.terms is None else self.terms.zeros()
        totals, _ = jax.lax.scan(add, self.alike(start), self.pairs)
        return totals


def _filled(x: jax.Array, size: int) -> jax.Array:
    """Pad the second dim with zeros to a multiple of a size."""
    missing = -x.shape[1] % size
    return jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2)) if missing else x
