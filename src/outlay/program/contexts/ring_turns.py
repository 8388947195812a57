"""Go round a ring: keys and values come from one device after the other, or from where they are gathered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from outlay.program.contexts.ring_chunks import Chunks

Add = Callable[[Any, Any, Any], tuple[Any, Any]]
"""`add(state, hop, moving)` returns the state, and the gradients of keys and values, or None."""


def go_round(chunks: Chunks, add: Add, state: Any, moving: Any) -> tuple[Any, Any]:
    """Let keys and values come round, and add what is computed of them.

    Args:
        chunks: the chunks of every device.
        add: adds what is computed of the keys that are there.
        state: what it begins with.
        moving: each device's own keys, values and segments.

    Returns:
        The state, and the gradients of each device's own keys and values.
    """
    if chunks.ring.is_gathered:
        return _gathered(chunks, add, state, moving)
    last = chunks.num_hops
    coming = _moved(chunks, moving) if last else moving
    state, grads = add(state, 0, moving)
    # All but the edges of a window are alike, and one loop; its last turn, after which nothing moves on, is apart.
    num_alike = _num_alike(chunks)

    def turn(carry: Any, hop: Any) -> tuple[Any, None]:
        state, coming, grads = carry
        following, grads_here = _moved(chunks, coming), _moved(chunks, grads)
        state, more = add(state, hop, coming)
        return (state, following, _sum(grads_here, more)), None

    if num_alike > 1:
        (state, coming, grads), _ = jax.lax.scan(turn, (state, coming, grads), jnp.arange(1, num_alike))
    for hop in range(max(num_alike, 1), last + 1):
        following = _moved(chunks, coming) if hop < last else coming
        grads = _moved(chunks, grads)
        state, more = add(state, hop, coming)
        grads, coming = _sum(grads, more), following
    return state, _moved(chunks, grads, -last)


def _num_alike(chunks: Chunks) -> int:
    """Return the first hop behind the loop: the first keys that a window sees in part."""
    window = chunks.ring.mask.window
    if window is None or chunks.is_mirrored:
        return chunks.num_hops
    return max(min(window // chunks.size, chunks.num_hops + 1), 1)


def _moved(chunks: Chunks, tree: Any, by: int = 1) -> Any:
    """Pass what a device holds on to the next one."""
    if by % chunks.ring.num == 0:
        return tree
    return jax.tree.map(lambda x: chunks.place(jnp.roll(x, by, axis=0)), tree)


def _sum(tree: Any, other: Any) -> Any:
    return jax.tree.map(jnp.add, tree, other)


def _gathered(chunks: Chunks, add: Add, state: Any, moving: Any) -> tuple[Any, Any]:
    last = chunks.num_hops
    whole = jax.tree.map(lambda x: chunks.ring.place(x, P(None)), moving)

    def turn(state: Any, hop: Any) -> tuple[Any, Any]:
        source = (chunks.devices - hop) % chunks.ring.num
        coming = jax.tree.map(lambda x: chunks.place(jnp.take(x, source, axis=0)), whole)
        return add(state, hop, coming)

    num_alike = _num_alike(chunks)
    state, first = add(state, 0, moving)
    given = [jax.tree.map(lambda x: x[None], first)]
    if num_alike > 1:
        state, more = jax.lax.scan(turn, state, jnp.arange(1, num_alike))
        given.append(more)
    for hop in range(max(num_alike, 1), last + 1):
        state, more = turn(state, hop)
        given.append(jax.tree.map(lambda x: x[None], more))
    return state, jax.tree.map(lambda *by_hop: _home(chunks, jnp.concatenate(by_hop)), *given)


def _home(chunks: Chunks, by_hop: jax.Array) -> jax.Array:
    """Sum over devices what each has for the keys of others: (hops, n, ...) becomes (n, ...)."""
    num = chunks.ring.num
    by_hop = jnp.pad(by_hop, [(0, num - len(by_hop)), *[(0, 0)] * (by_hop.ndim - 1)])
    hops = (chunks.devices[:, None] - chunks.devices[None]) % num  # of each device, and of the keys' own

    def of_device(x: jax.Array, hops: jax.Array) -> jax.Array:
        return jnp.take(x, hops, axis=0)

    spread = jax.vmap(of_device, in_axes=(1, 0), spmd_axis_name=chunks.ring.axis)(by_hop, hops)
    return chunks.place(chunks.place(spread).sum(axis=0))
