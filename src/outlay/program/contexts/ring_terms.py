"""What a call says of its scores besides who sees whom, such as a bias or a mask, in the chunks of every device.

A device needs the rows of its own queries and no others: they stay where they are, and of the columns those of the keys
that have come are taken. So do gradients of a bias: nothing of it goes round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from outlay.models.attention.blockwise import HIDDEN
from outlay.program.contexts.ring_chunks import Chunks, Pick, Step, over, picked


class Terms:
    """The terms of a call in chunks of queries and, of each, in chunks of keys.

    Each chunk is (n, B, heads, queries, n, keys): of every device, and of the device that the keys come from. Every dim
    but the first may be 1, where what is said is the same.

    Args:
        chunks: the chunks of tokens.
        terms: each (B or 1, heads or 1, T or 1, S or 1), of bool or to be added.
        groups: the heads of keys.
    """

    def __init__(self, chunks: Chunks, terms: Sequence[jax.Array], groups: int) -> None:
        self._chunks, self._terms, self._groups = chunks, terms, groups
        self._split = [self._of_chunks(x) for x in terms]

    def at(self, step: Step, hop: Any) -> BlockTerms | None:
        """Return what terms say of a piece of the scores; None if there are none."""
        if not self._terms:
            return None
        sources = (self._chunks.devices - hop) % self._chunks.ring.num
        here = jax.tree.map(lambda x: self._taken(x, sources), self._split)
        pieces = [picked(picked(rows, step.query), step.key) for rows in here]
        return BlockTerms(pieces, self._groups, self._chunks.ring.block)

    def zeros(self) -> Any:
        """Return what gradients of terms that are added begin with: chunks by hop, not by where keys come from."""
        added = zip(self._split, self._terms, strict=True)
        return [jax.tree.map(self._chunks.zeros, rows) for rows, term in added if term.dtype != bool]

    def added(self, totals: Any, step: Step, hop: Any, grads: Sequence[jax.Array]) -> Any:
        """Add the gradients of a piece of the scores, each (n, B, heads, queries, keys)."""

        def of_rows(row: int, cols: Sequence[jax.Array], grad: jax.Array) -> list[jax.Array]:
            is_row = _is_it(step.query, row)
            is_there = True if step.is_there is None else step.is_there
            return [self._added(x, hop, grad, is_there, is_row, _is_it(step.key, col)) for col, x in enumerate(cols)]

        pairs = zip(totals, grads, strict=True)
        return [[of_rows(row, cols, grad) for row, cols in enumerate(rows)] for rows, grad in pairs]

    def joined(self, totals: Any) -> tuple[jax.Array | None, ...]:
        """Return the gradients of all terms; None for masks."""
        devices, num = self._chunks.devices, self._chunks.ring.num
        hops = (devices[:, None] - devices[None]) % num  # of each device, and of the keys' own
        home = iter(jax.tree.map(lambda x: x if x.shape[-2] == 1 else self._taken(x, hops), totals))

        def whole(term: jax.Array) -> jax.Array:
            shape = jax.ShapeDtypeStruct(term.shape, jnp.float32)
            return jax.linear_transpose(self._of_chunks, shape)(next(home))[0].astype(term.dtype)

        return tuple(None if term.dtype == bool else whole(term) for term in self._terms)

    def _of_chunks(self, term: jax.Array) -> list[list[jax.Array]]:
        chunks, num = self._chunks, self._chunks.ring.num
        if term.shape[2] == 1:
            rows = [chunks.place(jnp.broadcast_to(term[None], (num, *term.shape)))] * (1 + chunks.is_mirrored)
        else:
            rows = [jnp.moveaxis(x, 2, 3) for x in chunks.split(jnp.moveaxis(term, 2, 1))]
        if term.shape[3] == 1:
            return [[x[..., None]] * len(rows) for x in rows]
        parts = [x.reshape(*x.shape[:-1], num, len(rows), -1) for x in rows]
        flipped = [jnp.flip(x[..., 1, :], -2) if chunks.is_mirrored else None for x in parts]
        firsts = [x[..., 0, :] for x in parts]
        return [[x for x in of if x is not None] for of in zip(firsts, flipped, strict=True)]

    def _taken(self, x: jax.Array, which: jax.Array) -> jax.Array:
        """Take of every device what it says of the keys of one other, or of several."""
        if x.shape[-2] == 1:
            return x[..., 0, :]

        def of_device(x: jax.Array, which: jax.Array) -> jax.Array:
            return jnp.take(x, which, axis=-2)

        return self._chunks.place(jax.vmap(of_device)(x, which))

    def _added(self, total: jax.Array, hop: Any, grad: jax.Array, *is_it: Any) -> jax.Array:
        if any(one is False for one in is_it):
            return total
        for one in is_it:
            grad = grad if one is True else jnp.where(over(one, grad), grad, 0.0)
        at = hop if total.shape[-2] > 1 else 0
        so_far = jax.lax.dynamic_index_in_dim(total, at, total.ndim - 2, keepdims=False)
        return self._chunks.place(jax.lax.dynamic_update_index_in_dim(total, so_far + grad, at, total.ndim - 2))


def _is_it(pick: Pick, number: int) -> Any:
    """Return whether a pick is the chunk of this number: for all devices, or for each."""
    if isinstance(pick, int):
        return pick == number
    return pick if number else ~pick


class BlockTerms:
    """What is said of one piece of the scores, block by block.

    Args:
        terms: each (n, B, heads, queries, keys), any of these but the first may be 1.
        groups: the heads of keys.
        block: the queries and keys of a block.
    """

    def __init__(self, terms: Sequence[jax.Array], groups: int, block: int) -> None:
        self._block, self._given = block, terms
        self._terms = [self._padded(x, groups) for x in terms]

    def applied(self, scores: jax.Array, i: jax.Array, j: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the scores (n * B, kv_heads, shared, queries, keys) of two blocks, and which are seen."""
        for term in self._terms:
            piece, of_devices = self._piece(term, i, j), scores.reshape(len(term), -1, *scores.shape[1:])
            if term.dtype == bool:
                changed = jnp.where(piece, of_devices, HIDDEN)
            else:
                changed = of_devices + piece.astype(jnp.float32)
            scores = changed.reshape(scores.shape)
        return scores, scores > HIDDEN / 2

    def zeros(self) -> list[jax.Array]:
        """Return what the gradients of terms that are added begin with."""
        return [jnp.zeros(x.shape, jnp.float32) for x in self._terms if x.dtype != bool]

    def added(self, totals: Sequence[jax.Array], grads: jax.Array, i: jax.Array, j: jax.Array) -> list[jax.Array]:
        """Add the gradients of the scores of two blocks, summed where a term is the same."""
        results = []
        for total in totals:
            piece, of_devices = self._piece(total, i, j), grads.reshape(len(total), -1, *grads.shape[1:])
            same = [axis for axis, size in enumerate(piece.shape) if size < of_devices.shape[axis]]
            piece = piece + of_devices.sum(same, keepdims=True)
            results.append(jax.lax.dynamic_update_slice(total, piece, self._starts(total, i, j)))
        return results

    def cropped(self, totals: Sequence[jax.Array]) -> list[jax.Array]:
        """Return gradients in the shapes of the terms that are added."""
        shapes = [x.shape for x in self._given if x.dtype != bool]
        pairs = zip(totals, shapes, strict=True)
        return [total[..., : shape[3], : shape[4]].reshape(shape) for total, shape in pairs]

    def _padded(self, x: jax.Array, groups: int) -> jax.Array:
        """Reshape a term to (n, B, kv_heads, shared, queries, keys), in whole blocks."""
        heads = (1, 1) if x.shape[2] == 1 else (groups, x.shape[2] // groups)
        missing = [-size % self._size(size) for size in x.shape[3:]]
        return jnp.pad(x.reshape(*x.shape[:2], *heads, *x.shape[3:]), [(0, 0)] * 4 + [(0, more) for more in missing])

    def _piece(self, term: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
        sizes = (*term.shape[:4], *map(self._size, term.shape[4:]))
        return jax.lax.dynamic_slice(term, self._starts(term, i, j), sizes)

    def _starts(self, term: jax.Array, i: jax.Array, j: jax.Array) -> list[Any]:
        pairs = zip((i, j), term.shape[4:], strict=True)
        return [0] * 4 + [0 if size == 1 else number * self._size(size) for number, size in pairs]

    def _size(self, size: int) -> int:
        """Return the tokens of a block, of so many."""
        return min(size, self._block)
