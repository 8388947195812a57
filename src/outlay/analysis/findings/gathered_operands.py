"""Find operands that are gathered for an operation that XLA does not split, so that every device computes all of it."""

from __future__ import annotations

from collections.abc import Iterator

from outlay.analysis.attribution.program_facts import CollectiveFacts
from outlay.analysis.attribution.provenance import read_op_name, user_line
from outlay.analysis.findings.communication import at, where_it_ends
from outlay.analysis.findings.finding import Evidence, Finding, seconds_of
from outlay.analysis.hlo.hlo_module import Instruction, SourceLine
from outlay.analysis.work.products import NO_KERNELS, custom_call_target
from outlay.core.quantities import format_bytes, how_often

_NOT_SPLIT = ("fft", "cholesky", "triangular-solve", "sort", "topk")


def gathered_operands(evidence: Evidence) -> Iterator[Finding]:
    """Find all-gathers whose result goes into an FFT, a factorization, a sort or somebody's kernel."""
    gathers: dict[tuple[str, bool, SourceLine | None], list[CollectiveFacts]] = {}
    for computation, one, collective in evidence.exchanges():
        if collective.kind != "all-gather" or collective.leaf.startswith("params"):
            continue
        for end in where_it_ends(evidence.module, computation, one):
            if _is_not_split(end):
                key = _name(end), end.opcode == "custom-call", user_line(end.frames)
                gathers.setdefault(key, []).append(collective)
                break
    for (name, is_call, source), of_one in gathers.items():
        yield _finding(name, of_one, source, is_call=is_call)


def _finding(name: str, gathers: list[CollectiveFacts], source: SourceLine | None, *, is_call: bool) -> Finding:
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
