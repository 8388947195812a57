"""Find communication that a layout did not intend, and the constraints that avoid it.

It finds whole parameters that are gathered, exchanges in plain FSDP, a gathered batch, and values that are moved and
moved back. The fix says where a value should live, in the terms of the line that makes it: under `jax.vmap` a function
sees one sample, and a spec is about one sample's dims, so an axis of the batch would split features there.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence

from jax.sharding import PartitionSpec

from outlay.analysis.attribution.program_facts import CollectiveFacts
from outlay.analysis.attribution.provenance import read_op_name, user_line
from outlay.analysis.findings.finding import Evidence, Finding, first_source, seconds_of
from outlay.analysis.hlo.hlo_collectives import is_collective
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, SourceLine
from outlay.analysis.hlo.opcodes import EACH_ENTRY, FUSIONS, KINDS, MOVES, both_halves
from outlay.core.quantities import format_bytes, how_often
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import spec_text
from outlay.layout.policies import LargestDim
from outlay.program.program import Program

ONE_SAMPLE = "inside jax.vmap a spec is for one sample, so constrain what vmap takes or returns"
"""Added to a fix if the line is under `jax.vmap`."""

_CONSTRAINS = re.compile(r"constrain|reshard|out_sharding")
_MAX_VALUES = 400
_HOPS = 3
_LIGHT = EACH_ENTRY | MOVES | both_halves(KINDS["copies"])
"""Operations that move data, or compute entry by entry: they could run wherever their operands are."""


def whole_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Find parameters that a rule other than FSDP splits, to be used in pieces, but that are gathered."""
    program = evidence.program
    if program is None:
        return
    planned = {leaf.path: leaf for leaf in program.plan.state}
    for path, gathers in _by_leaf(evidence.collectives).items():
        # The batch has a finding of its own, and the optimizer's state goes where its parameter goes.
        if path not in planned or not path.startswith("params"):
            continue
        meant = fsdp_axes(program)
        odd = [one for one in gathers if set(one.axes) - meant]
        if odd:
            yield _whole_parameter(planned[path], odd, manual=program.has_manual_collectives)


def fsdp_axes(program: Program) -> set[str]:
    """Return the axes along which the layout splits parameters only to gather them where they are used."""
    policies = [rule.placement for rule in program.layout if not rule.names("opt_state") and not rule.names("grads")]
    return {axis for policy in policies if isinstance(policy, LargestDim) for axis in policy.axes}


def _whole_parameter(leaf: LeafPlan, gathers: Sequence[CollectiveFacts], *, manual: bool) -> Finding:
    cost = _bytes(gathers)
    runs = sum(one.count for one in gathers)
    axes = sorted({axis for one in gathers for axis in one.axes})
    source = first_source(gathers)
    text = (
        f"{leaf.path} is split as {spec_text(leaf.spec)} by rule {leaf.rule}, but gathered over {'+'.join(axes)} "
        f"{how_often(runs)} a step{at(source)}: {format_bytes(cost)}"
    )
    fix = (
        "split it along a dim that the operation keeps (columns of one layer, rows of the next), or constrain the "
        f"operation's other operand{at(source)}: outlay.constrain(x, P(..., {axes[0]!r}))"
    )
    if manual:
        fix = (
            'use mode="auto", which splits the products too: in mode manual every device computes whole layers for its '
            f"own samples, and splitting parameters over {'+'.join(axes)} only saves memory"
        )
    return Finding("whole-parameter-gather", text, fix, cost, source, seconds=seconds_of(gathers))


def exchanges_in_fsdp(evidence: Evidence) -> Iterator[Finding]:
    """Find all-to-all under a layout that only splits the batch, and parameters to gather them: no value needs it."""
    program = evidence.program
    if program is None or not fsdp_axes(program):
        return
    plain = fsdp_axes(program) | {axis for leaf in program.plan.of_kind("batch") for axis in (*leaf.dims, ())[0]}
    used = {axis for leaf in program.plan for axes in leaf.dims for axis in axes}
    if used - plain or program.plan.expert_axes:  # tensor parallelism or experts may need them
        return
    of_attention = {(axis,) for axis in program.layout.context_axes}  # which may exchange tokens for heads
    at_line: dict[SourceLine | None, list[CollectiveFacts]] = {}
    for one in evidence.collectives:
        if one.kind == "all-to-all" and one.axes not in of_attention:
            at_line.setdefault(one.source, []).append(one)
    for source, exchanges in at_line.items():
        cost = sum(one.bytes_per_step for one in exchanges)
        text = (
            f"all-to-all{at(source)} exchanges values {how_often(sum(one.count for one in exchanges))} a step, "
            f"{format_bytes(cost)}, but FSDP needs none: the compiler splits activations there as it splits a parameter"
        )
        axis = _first_axis(exchanges)
        fix = spread_samples(evidence, "the activations", source, axis)
        yield Finding(
            "all-to-all-in-fsdp", text, fix, cost, source, seconds=seconds_of(exchanges), spec=PartitionSpec(axis)
        )


def gathered_batch(evidence: Evidence) -> Iterator[Finding]:
    """Find leaves of the batch that every device gathers, so that all do the same work on all samples."""
    for path, gathers in _by_leaf(evidence.collectives).items():
        if not path.startswith("batch"):
            continue
        cost, source = _bytes(gathers), first_source(gathers)
        text = (
            f"{path} is gathered{at(source)}, {format_bytes(cost)} a step: from there on every device works on all "
            "samples, not on its own"
        )
        axis = _first_axis(gathers)
        fix = spread_samples(evidence, "the values computed from it", source, axis)
        yield Finding("gathered-batch", text, fix, cost, source, seconds=seconds_of(gathers), spec=PartitionSpec(axis))


def gathers_a_value(one: CollectiveFacts) -> bool:
    """Return whether an exchange gathers something else than a parameter, which FSDP gathers where it is used."""
    return one.kind == "all-gather" and not one.leaf.startswith("params")


def _by_leaf(collectives: Sequence[CollectiveFacts]) -> dict[str, list[CollectiveFacts]]:
    """Group the all-gathers by leaf."""
    gathers: dict[str, list[CollectiveFacts]] = {}
    for one in collectives:
        for leaf in one.leaves if one.kind == "all-gather" else ():
            gathers.setdefault(leaf, []).append(one)
    return gathers


def _bytes(gathers: Sequence[CollectiveFacts]) -> int:
    """Return the bytes sent for one leaf; of leaves that are gathered together its share, as if all were equal."""
    return sum(one.bytes_per_step // len(one.leaves) for one in gathers)


def _first_axis(collectives: Sequence[CollectiveFacts]) -> str:
    return next((axis for one in collectives for axis in one.axes), "data")


def back_and_forth(evidence: Evidence) -> Iterator[Finding]:
    """Find exchanges that another one reverts, and gathers that are cut again, with only element-wise work between."""
    by_name = {one.name: one for one in evidence.collectives}
    for computation, one, collective in evidence.exchanges():
        if collective.kind not in ("all-to-all", "all-gather"):
            continue
        ends = list(where_it_ends(evidence.module, computation, one))
        after = [by_name[end.name] for end in ends if end.name in by_name]
        back = [other for other in after if other.kind == collective.kind and other.axes == collective.axes]
        if collective.kind == "all-to-all" and back:
            yield _exchanged_twice(evidence, collective, back[0])
        elif collective.kind == "all-gather" and ends and all(_is_own_piece(computation, end) for end in ends):
            yield _gathered_and_cut(evidence, collective, one)


def where_it_ends(module: HloModule, computation: Computation, one: Instruction) -> Iterator[Instruction]:
    """Yield what takes a value, past element-wise operations: collectives, products, slices, the end."""
    pending, seen = [one], {one.name}
    while pending and len(seen) < _MAX_VALUES:
        value = pending.pop(0)
        users = computation.users.get(value.name, ())
        if value.is_root:
            yield value
        for user in users:
            if user.name in seen:
                continue
            seen.add(user.name)
            passes = is_elementwise(module, user) and not _is_own_piece(computation, user)
            if passes or user.opcode.endswith("-done"):
                pending.append(user)
            else:
                yield user


def _is_own_piece(computation: Computation, one: Instruction) -> bool:
    """Return whether an instruction slices out a piece that depends on the device."""
    if is_collective(one.opcode) or ("slice" not in one.opcode and one.opcode != "fusion"):
        return False
    # The start of such a slice is computed from the device's number, by a few operations on single integers.
    pending = [(operand, _HOPS) for operand in one.operands]
    while pending:
        name, hops = pending.pop()
        operand = computation.instructions.get(name)
        if operand is None:
            continue
        if operand.opcode in ("partition-id", "replica-id"):
            return True
        if hops and all(not shape.dims or shape.dtype in ("u32", "s32") for shape in operand.shapes):
            pending += [(further, hops - 1) for further in operand.operands]
    return False


def _exchanged_twice(evidence: Evidence, there: CollectiveFacts, back: CollectiveFacts) -> Finding:
    cost = there.bytes_per_step + back.bytes_per_step
    text = (
        f"a value is exchanged by all-to-all over {_axes(there)}{at(there.source)} and back{at(back.source)}, with "
        f"only element-wise operations between: {format_bytes(cost)} a step"
    )
    spec = None
    constrained = [one.source for one in (there, back) if is_constrained(evidence.module, one.source)]
    if constrained:
        fix = f"remove the constraint{at(constrained[0])}, or write the same spec on both sides"
    else:
        axis = _first_axis((there,))
        fix, spec = spread_samples(evidence, "the values", there.source, axis), PartitionSpec(axis)
    seconds = seconds_of((there, back))
    return Finding("resharding", text, f"keep one sharding: {fix}", cost, there.source, seconds=seconds, spec=spec)


def _gathered_and_cut(evidence: Evidence, gather: CollectiveFacts, instruction: Instruction) -> Finding:
    text = (
        f"{gather.leaf or gather.value} is gathered over {_axes(gather)}{at(gather.source)}, and every use cuts a "
        f"device's own piece out of it again: {format_bytes(gather.bytes_per_step)} a step"
    )
    instead = ", instead of P()" if is_constrained(evidence.module, gather.source) else ""
    spec = _gathered_spec(gather, instruction)
    written = "P(...)" if spec is None else spec_text(spec)
    fix = f"constrain it to the spec that it has on both sides, outlay.constrain(x, {written})"
    fix += f"{instead}{at(gather.source)}"
    if is_under_vmap(evidence.module, gather.source):
        fix += f"; {ONE_SAMPLE}"
    return Finding(
        "resharding", text, fix, gather.bytes_per_step, gather.source, seconds=seconds_of([gather]), spec=spec
    )


def _gathered_spec(gather: CollectiveFacts, instruction: Instruction) -> PartitionSpec | None:
    """Return how the operand of an all-gather is split; None if it gathers several, or along no axes of the mesh."""
    dims = re.findall(r"\d+", instruction.attributes.get("dimensions", ""))
    if len(dims) != 1 or not gather.axes or len(instruction.operands) != 1:
        return None
    return PartitionSpec(*[None] * int(dims[0]), gather.axes[0] if len(gather.axes) == 1 else gather.axes)


def _axes(collective: CollectiveFacts) -> str:
    return "+".join(collective.axes) or f"{collective.group_size} devices"


def is_elementwise(module: HloModule, one: Instruction) -> bool:
    """Return whether an instruction moves data or computes element-wise, so that it would work on another sharding."""
    if fused := module.fused(one):
        nested = [] if FUSIONS.isdisjoint(fused.opcodes) else fused.instructions.values()
        nested = [inner for inner in nested if inner.opcode in FUSIONS]
        return fused.opcodes - FUSIONS <= _LIGHT and all(is_elementwise(module, inner) for inner in nested)
    return one.opcode in _LIGHT


def spread_samples(evidence: Evidence, what: str, source: SourceLine | None, axis: str) -> str:
    """Write the fix that keeps each device's samples its own.

    Args:
        evidence: the program.
        what: what is to be constrained, in words.
        source: the line that makes it.
        axis: the batch's axis.
    """
    if is_under_vmap(evidence.module, source):
        return (
            f"{what}{at(source)} are made inside jax.vmap, where a spec is for one sample: constrain what vmap "
            f"returns, outlay.constrain(jax.vmap(f)(x), P({axis!r})), or inside it outlay.constrain(x, P()), which "
            "splits no dim of a sample and leaves the samples where they are"
        )
    return f"constrain {what}{at(source)} to the batch's axis: outlay.constrain(x, P({axis!r}))"


def is_under_vmap(module: HloModule, source: SourceLine | None) -> bool:
    """Return whether a line computes under `jax.vmap`."""
    return any("vmap(" in one for one in _op_names(module, source))


def is_constrained(module: HloModule, source: SourceLine | None) -> bool:
    """Return whether a line itself constrains where a value lives."""
    if source is None:
        return False
    names = (read_op_name(one) for one in _op_names(module, source))
    # A constraint that agreed with the compiler's choice leaves nothing in the program; the source line still has it.
    by_jax = any(name is not None and name.primitive == "sharding_constraint" for name in names)
    return by_jax or bool(_CONSTRAINS.search(linecache.getline(source.file, source.line)))


def at(source: SourceLine | None) -> str:
    """Write a line so that it can follow a word; empty if the line is unknown."""
    return f" at {source}" if source else ""


def _op_names(module: HloModule, source: SourceLine | None) -> list[str]:
    if source is None:
        return []
    return [one.op_name for _, one in module.instructions() if one.op_name and user_line(one.frames) == source]
