"""Find operands that are gathered: for an operation that XLA does not split, or because they are indexed.

Of the first every device computes all; the second are read along a split dim by numbers that the step computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jax.sharding import PartitionSpec

from outlay.analysis.attribution.program_facts import CollectiveFacts
from outlay.analysis.attribution.provenance import read_op_name, user_line
from outlay.analysis.findings.communication import at, gathers_a_value, is_elementwise, where_it_ends
from outlay.analysis.findings.finding import Evidence, Finding, seconds_of
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, SourceLine
from outlay.analysis.hlo.opcodes import KINDS
from outlay.analysis.work.products import NO_KERNELS, custom_call_target
from outlay.core.quantities import format_bytes, how_often
from outlay.layout.placement import spec_text

_NOT_SPLIT = KINDS["Fourier"] | KINDS["factorizes"] | KINDS["sorts"]
_MAX_VALUES = 30
"""How many values are followed from a gather: what reads it by an index stands next to it."""


def gathered_operands(evidence: Evidence) -> Iterator[Finding]:
    """Find all-gathers whose result goes into an FFT, a factorization, a sort or somebody's kernel."""
    gathers: dict[tuple[str, bool, SourceLine | None], list[CollectiveFacts]] = {}
    for computation, one, collective in evidence.exchanges():
        if not gathers_a_value(collective):
            continue
        for end in where_it_ends(evidence.module, computation, one):
            if _is_not_split(end):
                key = _name(end), end.opcode == "custom-call", user_line(end.frames)
                gathers.setdefault(key, []).append(collective)
                break
    for (name, is_call, source), of_one in gathers.items():
        yield _of_unsplit(name, of_one, source, is_call=is_call)


def _of_unsplit(name: str, gathers: list[CollectiveFacts], source: SourceLine | None, *, is_call: bool) -> Finding:
    cost = sum(one.bytes_per_step for one in gathers)
    axes = "+".join(dict.fromkeys(axis for one in gathers for axis in one.axes)) or f"{gathers[0].group_size} devices"
    runs = how_often(sum(one.count for one in gathers))
    text = (
        f"operands of {name}{at(source)} are gathered over {axes} {runs} a step, {format_bytes(cost)}, since it goes "
        "along a split dim or XLA does not split it: every device computes all of it"
    )
    fix = (
        f"split other dims of its operand, outlay.constrain(x, P(..., {axes.partition('+')[0]!r})): {name} then runs "
        "on each device's own entries; a transform of several dims goes one dim at a time, with a constraint in between"
    )
    if is_call:
        fix = (
            "call it inside jax.shard_map, split over dims along which it treats each entry by itself, such as "
            'samples; with outlay.train_step, mode="manual" does that for the batch'
        )
    return Finding("gathered-operand", text, fix, cost, source, seconds=seconds_of(gathers))


def _is_not_split(one: Instruction) -> bool:
    if one.opcode == "custom-call":
        return custom_call_target(one) not in NO_KERNELS
    return one.opcode in _NOT_SPLIT


def _name(one: Instruction) -> str:
    name = read_op_name(one.op_name)
    return name.primitive if name is not None else custom_call_target(one) or one.opcode


def indexed_operands(evidence: Evidence) -> Iterator[Finding]:
    """Find all-gathers whose result is indexed along the dim that was split."""
    by_name = {one.name: one for one in evidence.collectives if gathers_a_value(one)}
    gathers: dict[SourceLine | None, list[CollectiveFacts]] = {}
    other_dims: dict[SourceLine | None, int | None] = {}
    for computation, one in evidence.module.instructions():
        collective = by_name.get(one.name)
        if collective is None:
            continue
        dims = re.findall(r"\d+", one.attributes.get("dimensions", ""))
        if len(dims) != 1:
            continue
        if (rank := _indexed_rank(evidence.module, computation, one, int(dims[0]))) is not None:
            gathers.setdefault(collective.source, []).append(collective)
            other_dims[collective.source] = None if rank < 2 else 0 if dims[0] != "0" else 1
    for source, of_one in gathers.items():
        yield _of_indexed(of_one, source, other_dims[source])


def _of_indexed(gathers: list[CollectiveFacts], source: SourceLine | None, other_dim: int | None) -> Finding:
    cost = sum(one.bytes_per_step for one in gathers)
    first = max(gathers, key=lambda one: one.bytes_per_step)
    axes = "+".join(first.axes) or f"{first.group_size} devices"
    text = (
        f"{first.leaf or first.value} is gathered over {axes}{at(source)} {how_often(sum(g.count for g in gathers))} a "
        f"step, {format_bytes(cost)}: it is indexed along the dim that is split, by numbers that the step computes, so "
        "an entry may lie on any device"
    )
    fix = (
        'take entries of each device\'s own part only, in jax.shard_map (with outlay.train_step, mode="manual"); an '
        "order that needs no value of the step, as a shuffle, belongs into the data"
    )
    if other_dim is not None:
        spec = spec_text(PartitionSpec(*[None] * other_dim, axes.partition("+")[0]))
        fix = f"split another dim of what is indexed, outlay.constrain(x, {spec}), which gathers nothing; or {fix}"
    return Finding("indexed-operand", text, fix, cost, source, seconds=seconds_of(gathers))


def _indexed_rank(module: HloModule, computation: Computation, gather: Instruction, dim: int) -> int | None:
    """Return the rank of what is gathered and then read by an index along a dim of it; None if nothing is."""
    pending, seen = [gather], {gather.name}
    results = {shape.dims for shape in gather.shapes}  # several values may be gathered together
    while pending and len(seen) < _MAX_VALUES:
        value = pending.pop(0)
        dims = value.shapes[-1].dims
        for user, place in computation.uses.get(value.name, ()):
            if dims in results and _reads(module, computation, user, place, dims, dim):
                return len(dims)
            passes = user.opcode == "get-tuple-element" or user.opcode.endswith("-done")
            if user.name not in seen and (passes or is_elementwise(module, user)):
                seen.add(user.name)
                pending.append(user)
    return None


def _reads(
    module: HloModule, computation: Computation, user: Instruction, place: int, dims: tuple[int, ...], dim: int
) -> bool:
    """Return whether an operation, or one that is fused into it, reads its operand at a place by an index."""
    fused = module.fused(user)
    if fused is None:
        return place == 0 and _takes_entries(user, dims, dim, slices=True)
    parameter = fused.parameter(place)
    if parameter is None:
        return False
    opcodes = [one.opcode for name in user.operands if (one := computation.instructions.get(name)) is not None]
    cuts_own = "partition-id" in opcodes or "replica-id" in opcodes
    uses = fused.uses.get(parameter.name, ())
    return any(number == 0 and _takes_entries(inner, dims, dim, slices=not cuts_own) for inner, number in uses)


def _takes_entries(user: Instruction, dims: tuple[int, ...], dim: int, *, slices: bool) -> bool:
    """Return whether an operation takes entries of its first operand by computed numbers, along a dim of it.

    Args:
        user: the operation.
        dims: the sizes of the value's dims.
        dim: the dim.
        slices: whether a slice counts: not where a device cuts its own piece.
    """
    if user.opcode == "gather":
        sizes = _numbers(user, "slice_sizes")
        return len(sizes) == len(dims) and dim in _numbers(user, "start_index_map") and sizes[dim] < dims[dim]
    if user.opcode == "dynamic-slice" and slices:
        sizes = _numbers(user, "dynamic_slice_sizes")
        return len(sizes) == len(dims) and sizes[dim] < dims[dim]
    return False


def _numbers(one: Instruction, attribute: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", one.attributes.get(attribute, ""))]
