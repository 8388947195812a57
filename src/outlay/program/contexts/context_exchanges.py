"""Which exchange a call of attention with split tokens takes, what it sends, and what keeps it from that."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from outlay.core.attention_calls import AttentionCall, current_attend
from outlay.core.context_values import within
from outlay.core.error_types import Problem
from outlay.core.primitives import EACH_TOKEN
from outlay.layout.contexts import Exchange
from outlay.layout.layout import Layout
from outlay.layout.plan import Plan
from outlay.models.attention.blockwise import Mask
from outlay.models.attention.dot_product import attention
from outlay.models.attention.kernel_rules import Refusal
from outlay.program.contexts.ring_attention import ring_attention
from outlay.program.contexts.ring_chunks import Ring
from outlay.program.place_inside import Place


def mask_of(call: AttentionCall) -> Mask:
    """Return the mask of a call."""
    window = call.window if call.window is not None and call.window < call.query.shape[1] else None
    return Mask(call.causal, window)


def ring_of(
    call: AttentionCall, axis: str, num: int, place: Place, *, is_gathered: bool = False, num_beside: int = 1
) -> Ring:
    """Return the ring that computes a call."""
    return Ring(axis, num, mask_of(call), call.scale, place, is_gathered, num_beside)


def num_beside(plan: Plan, layout: Layout, sizes: Mapping[str, int]) -> int:
    """Return the number of devices along mesh axes that may split heads: they split no batch, layers or tokens.

    Args:
        plan: where the batch lives.
        layout: the layout.
        sizes: the size of each mesh axis.
    """
    of_batch = {axis for leaf in plan.of_kind("batch") for axes in leaf.dims[:2] for axis in axes}
    taken = of_batch | {*layout.stage_axes, *layout.context_axes}
    return math.prod(size for axis, size in sizes.items() if axis not in taken)


def key_heads_sent(call: AttentionCall, ring: Ring) -> int:
    """Return the key heads that devices exchange for tokens: more than there are, where each is on several devices.

    Other axes may split heads already. Of fewer key heads than all these devices together, XLA would gather the heads
    of the other axes again, with all queries.
    """
    heads, key_heads = call.query.shape[2], call.key.shape[2]
    for num in (ring.num * ring.num_beside, ring.num):
        if key_heads % num == 0:
            return key_heads
        if num % key_heads == 0 and heads % num == 0:
            return num
    return key_heads


def numbers_sent(call: AttentionCall, ring: Ring) -> dict[Exchange, float]:
    """Return how many numbers of a head a device sends for each of its tokens, forward, by each exchange that can be.

    Gathering is among them where all keys and values are no more than a device's own queries.
    """
    heads, key_heads, num = call.query.shape[2], call.key.shape[2], ring.num
    tokens = call.query.shape[1]
    is_mirrored = ring.is_mirrored(tokens)
    sent: dict[Exchange, float] = {}
    if not any(_problems_of_heads(call, num)):
        sent["all_to_all"] = (2 * (heads + key_heads_sent(call, ring)) + _rows(call, num)) * (num - 1) / num
    if 2 * num * key_heads <= heads:
        sent["gather"] = 2 * key_heads * (num - 1) + (heads + _rows(call) / 2 if is_mirrored else 0)
    halves = heads + key_heads + _rows(call) / 2 if is_mirrored else 0
    sent["ring"] = 2 * key_heads * ring.num_hops(tokens) + halves
    return sent


def _rows(call: AttentionCall, copies: int = 1) -> float:
    """Return how many times a head's numbers a token's row of masks and biases is, times copies if heads share it."""
    num_tokens, dim = call.query.shape[0] * call.query.shape[1], call.query.shape[3]
    rows = [term for term in call.terms if term.shape[2] > 1]
    return sum(term.size * (copies if term.shape[1] == 1 else 1) for term in rows) / num_tokens / dim


def problems(call: AttentionCall, exchange: Exchange | None, ring: Ring, at: str) -> Iterator[Problem]:
    """Return what keeps a call from being computed with its tokens split.

    Args:
        call: the call.
        exchange: the exchange that its rule asks for.
        ring: its ring.
        at: its source line.
    """
    num, axis = ring.num, f"{ring.axis}={ring.num}"
    tokens, keys = call.query.shape[1], call.key.shape[1]
    for given in call.not_split:
        what = f"the call has {given}, and each device has only some tokens"
        yield Problem("not by tokens", at, what, "leave it out, or write a rule that leaves this call out")
    if exchange == "all_to_all":
        yield from (Problem("uneven heads", at, *of) for of in _problems_of_heads(call, num, axis))
    is_mirrored = exchange != "all_to_all" and ring.is_mirrored(tokens)
    for count, name in ((tokens, "queries"), (keys, "keys"))[: 1 if tokens == keys else 2]:
        parts = 2 * num if is_mirrored and name == "queries" else num
        if count % parts:
            why = f"2 chunks for each device of {axis}" if parts > num else axis
            up = -(-count // parts) * parts
            what = f"{count} {name if tokens != keys else 'tokens'} do not divide over {why}"
            yield Problem("uneven tokens", at, what, f"pad the sequence to {up} tokens, or another number of devices")


def _problems_of_heads(call: AttentionCall, num: int, axis: str = "") -> Iterator[tuple[str, str]]:
    heads, key_heads = call.query.shape[2], call.key.shape[2]
    fix = 'exchange="ring", which splits no heads, or another number of devices'
    if heads % num:
        yield f"all_to_all gives each device some heads, and {heads} heads do not divide over {axis}", fix
    elif key_heads % num and num % key_heads:
        yield f"all_to_all gives each device some heads, and {key_heads} key heads do not divide over {axis}", fix


def computed(call: AttentionCall, exchange: Exchange, ring: Ring) -> jax.Array:
    """Return the outputs of a call whose tokens are split."""
    return _by_heads(call, ring) if exchange == "all_to_all" else _in_pieces(call, ring)


def _in_pieces(call: AttentionCall, ring: Ring) -> jax.Array:
    segments = None if call.segment_ids is None else (call.segment_ids,) * 2

    def each_token(query: Any, key: Any, value: Any, segments: Any, terms: Any) -> jax.Array:
        outputs: Any = ring_attention(query, key, value, segments, terms, ring)
        mixed, is_seen = outputs
        if not terms:
            return mixed
        mean = value.astype(jnp.float32).mean(axis=1, keepdims=True).astype(mixed.dtype)
        return jnp.where(is_seen[..., None], mixed, jnp.repeat(mean, mixed.shape[2] // mean.shape[2], axis=2))

    # Under this name it is known to treat each sequence by itself, though devices and sequences become one dim.
    each_token.__name__ = EACH_TOKEN
    with jax.named_scope("attention"), jax.named_scope(Refusal("ring" if ring.num > 1 else "terms").scope):
        return jax.jit(each_token)(call.query, call.key, call.value, segments, call.terms)


def _by_heads(call: AttentionCall, ring: Ring) -> jax.Array:
    """Exchange tokens for heads, compute attention over all tokens of some heads, and exchange them back."""
    num, axis, key_heads = ring.num, ring.axis, key_heads_sent(call, ring)
    shared = call.query.shape[2] // key_heads

    def to_heads(x: Any) -> jax.Array:
        """Split heads in place of tokens: each device has every num-th key head, and the queries that share it."""
        x = ring.place(x, P(P.UNCONSTRAINED, axis))
        repeats = max(key_heads // x.shape[2], 1)
        if repeats > 1:  # the copies, too, are split by tokens: XLA would gather them all to copy heads where they go
            x = ring.place(jnp.repeat(x, repeats, axis=2), P(P.UNCONSTRAINED, axis))
        parts = x.reshape(*x.shape[:2], key_heads // num, num, -1, x.shape[3])
        parts = ring.place(jnp.swapaxes(parts, 2, 3), P(P.UNCONSTRAINED, None, axis))
        return parts.reshape(x.shape)

    def of_heads(term: jax.Array) -> jax.Array:
        """Give each device what is said of its heads."""
        if term.shape[1] == 1:
            return term
        parts = term.reshape(len(term), key_heads // num, num, -1, *term.shape[2:])
        return ring.place(jnp.swapaxes(parts, 1, 2), P(P.UNCONSTRAINED, axis)).reshape(term.shape)

    given = [to_heads(x) for x in (call.query, call.key, call.value)]
    if call.terms:  # of which no kernel knows: a ring of one device computes its heads block by block
        of_one = dataclasses.replace(ring, num=1, place=lambda x, spec: x)
        query, key, value = given
        terms = tuple(map(of_heads, call.terms))
        mixed = _in_pieces(dataclasses.replace(call, query=query, key=key, value=value, terms=terms), of_one)
    else:
        segments = call.segment_ids
        if segments is not None:  # of all tokens: XLA would rather gather the masks that are made of them
            segments = ring.place(segments, P(P.UNCONSTRAINED, None))
        with within(current_attend, None):
            mixed = attention(*given, causal=call.causal, window=call.window, segment_ids=segments, scale=call.scale)
    parts = mixed.reshape(*mixed.shape[:2], num, key_heads // num, shared, mixed.shape[3])
    parts = ring.place(parts, P(P.UNCONSTRAINED, None, axis))
    return ring.place(jnp.swapaxes(parts, 2, 3).reshape(mixed.shape), P(P.UNCONSTRAINED, axis))
