"""What the figures of a rollout come to in one step of its graph."""

from __future__ import annotations

from collections.abc import Sequence

from outlay.core.sizes import format_bytes
from outlay.execute.program import Program
from outlay.execute.rollout import Rollout, count_steps
from outlay.report.explain.facts import CollectiveFacts


def of_one_step(program: Program | None, collectives: Sequence[CollectiveFacts]) -> tuple[str, ...]:
    """What is good to know of a program whose step is many of a graph, in words; nothing of any other.

    Args:
        program: the program, if it is one.
        collectives: what it moves.
    """
    if program is None or not isinstance(program.step, Rollout):
        return ()
    num = count_steps(program.batch_shapes)
    repeated = [one for one in collectives if one.count >= num]
    runs = sum(one.count for one in repeated) / num
    often = f"{runs:g} collective{'' if runs == 1 else 's'}"
    sent = format_bytes(sum(one.bytes_per_step for one in repeated) / num)
    each = f"a device sends {sent} in {often}" if repeated else "nothing is sent"
    return (f"a step of this program is {num:,} steps of its graph, and all figures are of {num:,}; in one {each}",)
