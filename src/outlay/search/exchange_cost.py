"""What goes between devices besides parameters and sums: keys and values of split tokens, and tokens of experts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from outlay.core.array_leaves import num_bits
from outlay.core.attention_calls import AttentionCall
from outlay.core.error_types import Problem
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.contexts import Exchange
from outlay.layout.layout import Layout
from outlay.layout.plan import Plan
from outlay.program.contexts.context_exchanges import key_heads_sent, num_beside, numbers_sent, problems, ring_of
from outlay.program.contexts.ring_chunks import Ring
from outlay.search.mesh_links import MeshLinks, size_of
from outlay.search.workload import Workload

_BACKWARD_OF_RING = 3
"""A ring goes round once more with keys and values, and takes along their gradients, which are float32."""


def context_of(layout: Layout, mesh: MeshInfo) -> Any:
    """Return the placement of a layout that splits the tokens of attention over several devices; None without one."""
    placements: list[Any] = [rule.placement for rule in layout]
    return next((one for one in placements if mesh.axis_sizes.get(getattr(one, "context_axis", ""), 1) > 1), None)


def in_pieces(layout: Layout) -> bool:
    """Return whether a layout's attention takes keys and values in pieces, for which no hardware has a kernel."""
    contexts: list[Any] = [rule.placement for rule in layout if getattr(rule.placement, "context_axis", "")]
    return any(one.exchange in ("ring", "gather") for one in contexts)


def context_problems(work: Workload, layout: Layout, mesh: MeshInfo) -> Iterator[Problem]:
    """Return what keeps attention from being computed with its tokens split, as the program itself would say it."""
    context = context_of(layout, mesh)
    if context is None:
        return
    for call in work.attention:
        yield from problems(call, context.exchange, _ring(call, context.context_axis, mesh, 1), f"@{call.name}")


def context_seconds(work: Workload, plan: Plan, layout: Layout, links: MeshLinks, runs: float, parts: int = 1) -> float:
    """Return the time of the exchanges of attention in a step, if nothing overlaps.

    Args:
        work: what is computed.
        plan: where the batch lives.
        layout: the layout.
        links: what times collectives.
        runs: how often a device runs a layer forward: once for each microbatch, in a pipeline in each tick.
        parts: in how many microbatches a pipeline takes the samples of a call.
    """
    context = context_of(layout, plan.mesh)
    if context is None:
        return 0.0
    axis, samples = context.context_axis, parts
    for leaf in plan.of_kind("batch")[:1]:
        samples *= size_of(plan.mesh, (leaf.dims or ((),))[0])
    beside = num_beside(plan, layout, plan.mesh.axis_sizes)
    rings = [_ring(call, axis, plan.mesh, beside) for call in work.attention]
    calls = zip(work.attention, rings, strict=True)
    return runs * sum(_call_seconds(call, context.exchange, ring, samples, links) for call, ring in calls)


def _call_seconds(call: AttentionCall, asked: Exchange | None, ring: Ring, samples: int, links: MeshLinks) -> float:
    """Return the time of the exchanges of one call, forward and backward."""
    axis, tokens = ring.axis, call.query.shape[1]
    sent = numbers_sent(call, ring)
    exchange = asked or min(sent, key=lambda each: sent[each])
    heads, key_heads, dim = call.query.shape[2], call.key.shape[2], call.query.shape[3]
    # Bytes of one head of a device's own tokens.
    head = call.query.shape[0] / samples * tokens / ring.num * dim * num_bits(str(call.query.dtype)) / 8
    if exchange == "all_to_all":
        both = (heads, key_heads_sent(call, ring))
        return 4 * sum(links.seconds("all-to-all", each * head, (axis,)) for each in both)
    mirror = links.seconds("collective-permute", (heads + key_heads) * head, (axis,)) if ring.is_mirrored(tokens) else 0
    if exchange == "gather":
        gathered = 2 * key_heads * head * ring.num
        gathers = 2 * links.seconds("all-gather", gathered, (axis,))
        return 2 * mirror + gathers + links.seconds("reduce-scatter", 2 * gathered, (axis,))
    hop = links.seconds("collective-permute", 2 * key_heads * head, (axis,))
    return 2 * mirror + (1 + _BACKWARD_OF_RING) * ring.num_hops(tokens) * hop


def _ring(call: AttentionCall, axis: str, mesh: MeshInfo, beside: int) -> Ring:
    return ring_of(call, axis, mesh.axis_sizes[axis], lambda x, spec: x, num_beside=beside)


def expert_seconds(plan: Plan, links: MeshLinks, runs: int) -> float:
    """Return the time in which tokens go to their experts and back in a step, forward and backward.

    Args:
        plan: with the values that the step names, among them tokens at their experts.
        links: what times collectives.
        runs: how often a layer runs forward: once for each microbatch.
    """
    seconds = 0.0
    for axis in plan.expert_axes:
        for leaf in plan.of_kind("intermediate"):
            if any(axis in axes for axes in leaf.dims[1:]):
                num_bytes = math.prod(leaf.local_shape) * num_bits(leaf.dtype) / 8
                seconds += 2 * runs * links.seconds("all-to-all", num_bytes, (axis,))
    return seconds
