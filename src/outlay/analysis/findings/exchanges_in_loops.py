"""Find exchanges inside loops that could run once: gathers of what the loop does not change, sums that could wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outlay.analysis.attribution.program_facts import CollectiveFacts
from outlay.analysis.attribution.provenance import user_line
from outlay.analysis.findings.communication import at
from outlay.analysis.findings.finding import Evidence, Finding, first_source, seconds_of
from outlay.analysis.hlo.loop_values import Loop, is_only_added_up, is_same_each_turn, loops_around
from outlay.core.quantities import counted, format_bytes

_SUMS = ("all-reduce", "reduce-scatter")


def exchanges_in_loops(evidence: Evidence) -> Iterator[Finding]:
    """Find collectives that each turn of a loop repeats, or whose sums nobody needs before it ends."""
    gathered: dict[str, tuple[Loop, list[CollectiveFacts]]] = {}
    summed: dict[str, tuple[Loop, list[CollectiveFacts]]] = {}
    for computation, one, collective in evidence.exchanges():
        for loop in loops_around(evidence.module, computation.name):
            if is_same_each_turn(evidence.module, loop, computation.name, one.operands):
                gathered.setdefault(loop.body.name, (loop, []))[1].append(collective)
            elif collective.kind in _SUMS and is_only_added_up(evidence.module, loop, computation.name, one.name):
                summed.setdefault(loop.body.name, (loop, []))[1].append(collective)
            else:
                continue
            break
    for loop, collectives in summed.values():
        yield _deferrable_sums(evidence, loop, collectives)
    for loop, collectives in gathered.values():
        yield _loop_invariant(evidence, loop, collectives)


def _is_pipeline(evidence: Evidence, loop: Loop) -> bool:
    """Return whether a loop is the ticks of a pipeline: as many turns, and values sent from stage to stage in each."""
    program = evidence.program
    if program is None or not program.pipelines:
        return False
    stages = set(program.layout.stage_axes)
    pipelines: list[Any] = [rule.placement for rule in program.layout if getattr(rule.placement, "stage_axis", "")]
    if loop.trips not in {each.num_ticks(program.mesh.shape[each.axis]) for each in pipelines}:
        return False
    return any(
        computation.name == loop.body.name and one.kind == "collective-permute" and set(one.axes) <= stages
        for computation, _, one in evidence.exchanges()
    )


def _deferrable_sums(evidence: Evidence, loop: Loop, collectives: Sequence[CollectiveFacts]) -> Finding:
    total, saved = _bytes(collectives, loop)
    text = (
        f"{_what(collectives)} in each of {loop.trips} turns of a loop{_line(loop, collectives)}, {format_bytes(total)}"
        f" a step, though it only adds them up: {format_bytes(total - saved)} if summed once behind it"
    )
    why = evidence.program.why_summed_each_time if evidence.program is not None else ""
    fix = (
        "add up each device's own in the loop, and sum over devices behind it: outlay.train_step(loss, optimizer, "
        f"accumulate={loop.trips}) does, and so does a loop inside jax.shard_map"
    )
    if _is_pipeline(evidence, loop):
        fix = "in a pipeline outlay.train_step(loss, optimizer) does, where the gradients are those of its loss"
    if why:
        fix = f"they would be, but {why}"
    return _finding("sum-in-loop", text, fix, saved, loop, collectives)


def _loop_invariant(evidence: Evidence, loop: Loop, collectives: Sequence[CollectiveFacts]) -> Finding:
    total, saved = _bytes(collectives, loop)
    # A collective inside of a loop over layers moves one of them: behind the loop all of them would be held.
    whole = {one.leaves or (one.name,): _result_bytes(one) * one.count // loop.trips for one in collectives}
    held = sum(whole.values())  # what the backward pass gathers again is held once
    text = (
        f"{_what(collectives)} again in each of {loop.trips} turns of a loop{_line(loop, collectives)}, which does not "
        f"change what is moved: {format_bytes(total)} a step, {format_bytes(total - saved)} if done once before it"
    )
    fix = f"do it before the loop, where a device has {format_bytes(held)} to hold the results through it"
    split = {path for one in collectives for path in one.leaves if path.startswith("params")}
    if evidence.program is not None and split:
        fix += (
            '; with outlay.train_step the rule ("grads.**", outlay.replicate()) does, and sums gradients once: a '
            "device then also holds those whole. Or fewer microbatches"
        )
    return _finding("same-in-each-turn", text, fix, saved, loop, collectives)


def _finding(kind: str, text: str, fix: str, saved: int, loop: Loop, collectives: Sequence[CollectiveFacts]) -> Finding:
    seconds = seconds_of(collectives)
    wasted = None if seconds is None else seconds * (1 - 1 / loop.trips)
    return Finding(kind, text, fix, saved, first_source(collectives), seconds=wasted)


def _bytes(collectives: Sequence[CollectiveFacts], loop: Loop) -> tuple[int, int]:
    total = sum(one.bytes_per_step for one in collectives)
    return total, total - total // loop.trips


def _result_bytes(one: CollectiveFacts) -> int:
    return one.operand_bytes * (one.group_size if one.kind == "all-gather" else 1)


def _what(collectives: Sequence[CollectiveFacts]) -> str:
    leaves = list(dict.fromkeys(path for one in collectives for path in one.gradients or one.leaves))
    kinds = " and ".join(dict.fromkeys(one.kind for one in collectives))
    axes = "+".join(dict.fromkeys(axis for one in collectives for axis in one.axes))
    over = f" over {axes}" if axes else ""
    of = f" of {leaves[0]}" if leaves else f" of {collectives[0].value}" if collectives[0].value else ""
    more = f" and {counted(len(leaves) - 1, 'other leaf', 'other leaves')}" if len(leaves) > 1 else ""
    return f"{kinds}{over}{of}{more} runs"


def _line(loop: Loop, collectives: Sequence[CollectiveFacts]) -> str:
    return at(user_line(loop.instruction.frames) or first_source(collectives))
