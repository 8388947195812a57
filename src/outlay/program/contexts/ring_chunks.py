"""The tokens of every device of a ring, in chunks, and the pieces of the scores between chunks of two devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from outlay.models.attention.blockwise import BLOCK, HIDDEN, Blocks, Mask
from outlay.program.place_inside import Place

Pick = Any
"""Which of a device's chunks: its number, or for each device whether it is the second."""


@dataclass(frozen=True)
class Ring:
    """How tokens that are split over devices attend to each other.

    Attributes:
        axis: the mesh axis.
        num: its devices.
        mask: which keys a query attends to.
        scale: the factor of the scores.
        place: constrains where values live.
        is_gathered: whether keys and values are gathered once, and not passed on.
        num_beside: devices of other mesh axes that may split heads.
        block: the queries and keys of a block.
    """

    axis: str
    num: int
    mask: Mask
    scale: float
    place: Place
    is_gathered: bool = False
    num_beside: int = 1
    block: int = BLOCK

    def is_mirrored(self, num_tokens: int) -> bool:
        """Return whether devices exchange halves: a window of up to half the tokens is nearly equal work as it is."""
        if self.num == 1:
            return False
        return self.mask.causal and (self.mask.window is None or 2 * self.mask.window > num_tokens)

    def num_hops(self, num_tokens: int) -> int:
        """Count the devices whose keys a device attends to, besides its own: of a window only neighbours.

        >>> rings = [Ring("context", 8, Mask(True, window), 1.0, print) for window in (None, 1, 9, 10, 17, 18)]
        >>> [ring.num_hops(64) for ring in rings]
        [7, 0, 1, 2, 2, 3]
        """
        if self.mask.window is None or self.is_mirrored(num_tokens):
            return self.num - 1
        return min(-(-(self.mask.window - 1) // (num_tokens // self.num)), self.num - 1)


class Step(NamedTuple):
    """One piece of the scores of every device: the chunks of queries and keys, and what is seen of it."""

    query: Pick
    key: Pick
    mask: Mask
    ahead_by: Any = 0
    is_there: jax.Array | None = None


class Chunks:
    """The chunks of every device, with the devices in front, and what is computed of them hop by hop.

    Attributes:
        ring: how tokens attend to each other.
        size: the tokens of a chunk.
        num_hops: the devices whose keys a device attends to, besides its own.
        is_mirrored: whether devices have exchanged halves.
        devices: the numbers of the devices.
    """

    def __init__(self, ring: Ring, query: jax.Array, key: jax.Array, segments: Any) -> None:
        self.ring, num_tokens = ring, query.shape[1]
        self.is_mirrored, self.num_hops = ring.is_mirrored(num_tokens), ring.num_hops(num_tokens)
        self.size = num_tokens // (2 * ring.num if self.is_mirrored else ring.num)
        self.devices = jnp.arange(ring.num)
        own, of_keys = (None, None) if segments is None else map(self.split, segments)
        self._segments, self._key_segments = own, of_keys

    def keys(self, key: jax.Array, value: jax.Array) -> Any:
        """Return the chunks that come round: keys, values, and the segments of keys."""
        return self.split(key), self.split(value), self._key_segments

    def split(self, x: jax.Array) -> list[jax.Array]:
        """Split the tokens (B, T, ...) into the chunks of every device, each (n, B, tokens, ...)."""
        num = self.ring.num
        if not self.is_mirrored:
            parts = x.reshape(x.shape[0], num, x.shape[1] // num, *x.shape[2:])
            return [self.place(jnp.moveaxis(parts, 1, 0))]
        parts = x.reshape(x.shape[0], num, 2, x.shape[1] // (2 * num), *x.shape[2:])
        first, second = (self.place(jnp.moveaxis(parts[:, :, half], 1, 0)) for half in (0, 1))
        return [first, self.place(jnp.flip(second, axis=0))]

    def joined(self, chunks: Sequence[jax.Array]) -> jax.Array:
        """Undo `split`."""
        if len(chunks) == 2:
            parts = jnp.stack([chunks[0], self.place(jnp.flip(chunks[1], axis=0))], axis=2)
            parts = jnp.moveaxis(self.place(parts), 0, 1)  # (B, n, 2, tokens, ...)
            tokens = parts.shape[1] * 2 * parts.shape[3]
            return parts.reshape(parts.shape[0], tokens, *parts.shape[4:])
        parts = jnp.moveaxis(self.place(chunks[0]), 0, 1)
        return parts.reshape(parts.shape[0], parts.shape[1] * parts.shape[2], *parts.shape[3:])

    def placed(self, tree: Any) -> Any:
        """Have each device hold its own of every array."""
        return jax.tree.map(self.place, tree)

    def zeros(self, x: jax.Array) -> jax.Array:
        """Return zeros of the shape of an array, float32, each device with its own."""
        return self.place(jnp.zeros(x.shape, jnp.float32))

    def place(self, x: jax.Array) -> jax.Array:
        """Have each device hold its own of an array with the devices in front."""
        return self.ring.place(x, P(self.ring.axis))

    def steps(self, hop: Any) -> list[Step]:
        """Return the pieces of the scores of each device's queries and the keys that come from `hop` devices before."""
        mask, devices = self.ring.mask, self.devices
        if not self.is_mirrored:
            if not mask.causal:
                return [Step(0, 0, mask)]
            if mask.window is None or isinstance(hop, int):
                return [Step(0, 0, mask, hop * self.size, devices >= hop if hop else None)]
            return [Step(0, 0, Mask(), 0, devices >= hop)]  # neighbours of which a window sees everything
        source = (devices - hop) % self.ring.num
        is_later = devices + source >= self.ring.num  # whether own first chunk comes after the source's second
        crossed = self._full(~is_later, is_later, source)
        if isinstance(hop, int) and hop == 0:
            return [Step(0, 0, mask), Step(1, 1, mask), crossed]
        return [self._full(source > devices, source > devices, source), crossed]

    def _full(self, query: jax.Array, key: jax.Array, source: jax.Array) -> Step:
        """Return the piece of two chunks, one after the other."""
        if self.ring.mask.window is None:
            return Step(query, key, Mask())
        last = 2 * self.ring.num - 1
        first, second = (
            jnp.where(is_second, last - 2 * of, 2 * of) for is_second, of in ((query, self.devices), (key, source))
        )
        return Step(query, key, self.ring.mask, (first - second) * self.size)

    def mixed(self, step: Step, queries: Any, moving: Any, terms: Any) -> tuple[jax.Array, jax.Array]:
        """Return outputs (n, B, tokens, kv_heads, shared, head_dim) of one piece and log-sum-exps, without the last."""

        def one(ahead_by: Any, query: Any, *of_keys: Any) -> Any:
            blocks = self._blocks(step.mask, ahead_by, query, *of_keys, terms=terms)
            mixed, log_sums = blocks.mixed(jnp.float32)
            size = query.shape[1]
            return (mixed[:, :size], jnp.moveaxis(log_sums[..., :size], 3, 1)), ()

        (mixed, log_sums), _ = self._mapped(one, step, queries, moving)
        if step.is_there is not None:
            log_sums = jnp.where(over(step.is_there, log_sums), log_sums, HIDDEN)
        return mixed, log_sums

    def gradients(
        self, step: Step, queries: Any, moving: Any, rows: Sequence[jax.Array], terms: Any
    ) -> tuple[list[jax.Array], Any]:
        """Return the gradients of queries, keys and values of one piece in float32, and what terms have added up."""

        def one(ahead_by: Any, query: Any, key: Any, *others: Any) -> Any:
            *of_blocks, grads, log_sums, delta = others
            blocks = self._blocks(step.mask, ahead_by, query, key, *of_blocks, terms=terms)
            of_rows = [jnp.moveaxis(blocks.padded_rows(x), 1, 3) for x in (log_sums, delta)]
            totals, of_terms = blocks.gradients(blocks.padded_rows(grads), *of_rows)
            pairs = zip(totals, (query, key, key), strict=True)
            return [total[:, : x.shape[1]].reshape(x.shape) for total, x in pairs], of_terms

        totals, of_terms = self._mapped(one, step, queries, moving, *rows)
        if step.is_there is not None:
            totals = [jnp.where(over(step.is_there, x), x, 0.0) for x in totals]
        return totals, of_terms

    def _mapped(self, one: Callable[..., Any], step: Step, queries: Any, moving: Any, *rows: Any) -> Any:
        keys, values, key_segments = moving
        given = [picked(queries, step.query), picked(keys, step.key), picked(values, step.key)]
        segments = [
            None if x is None else picked(x, pick)
            for x, pick in ((self._segments, step.query), (key_segments, step.key))
        ]
        # The devices become samples, which `Blocks` slices as on one device: `jax.vmap` would make a gather
        # and a scatter of each slice.
        num, batch = given[0].shape[:2]
        ahead_by = step.ahead_by if isinstance(step.ahead_by, int) else jnp.repeat(step.ahead_by, batch)
        merged = jax.tree.map(lambda x: x.reshape(num * batch, *x.shape[2:]), (given, segments, rows))
        of_samples, of_terms = one(ahead_by, *merged[0], *merged[1], *merged[2])
        return jax.tree.map(lambda x: self.place(x.reshape(num, batch, *x.shape[1:])), of_samples), of_terms

    def _blocks(
        self, mask: Mask, ahead_by: Any, query: Any, key: Any, value: Any, own: Any, other: Any, *, terms: Any
    ) -> Blocks:
        segments = None if own is None else (own, other)
        return Blocks(query, key, value, segments, mask, self.ring.scale, self.ring.block, ahead_by, terms)


def over(of_devices: jax.Array, x: jax.Array) -> jax.Array:
    """Give what is said of each device (n,) the dims of an array with the devices in front."""
    return of_devices.reshape(-1, *[1] * (x.ndim - 1))


def picked(chunks: Sequence[Any], pick: Pick) -> Any:
    """Return one of the chunks of every device."""
    if isinstance(pick, int):
        return chunks[pick]
    return jax.tree.map(lambda first, second: jnp.where(over(pick, first), second, first), *chunks)
