"""Collectives that a compiler has put into fusions, as that of TPUs does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, Shape

_STARTS, _ENDS = '"AsyncCollectiveStart"', '"AsyncCollectiveDone"'
# Fusions of this name compute something while a collective that started before goes on; they name it once more.
GOES_ON = "async_collective_fusion"


@dataclass(frozen=True)
class FusedCollective:
    """A collective in a fusion.

    Attributes:
        computation: the fusion's.
        instruction: the collective.
        scattered: of a sum of which each device keeps its slice, which is a reduce-scatter, the slice; else None.
        is_async: whether the fusion only starts it.
    """

    computation: Computation
    instruction: Instruction
    scattered: tuple[Shape, ...] | None
    is_async: bool


def fused_collectives(module: HloModule, fusion: Instruction, opcodes: frozenset[str]) -> Iterator[FusedCollective]:
    """The collectives that a fusion runs, or starts; those that it only waits for are left out.

    Args:
        module: the program.
        fusion: the instruction.
        opcodes: of all collectives.
    """
    pending, seen = [fusion.called("calls")], set()
    while pending:
        inner = module.computations.get(pending.pop())
        if inner is None or inner.name in seen:
            continue
        seen.add(inner.name)
        for one in inner.instructions.values():
            if one.opcode == "fusion":
                pending.append(one.called("calls"))
            elif one.opcode in opcodes:
                yield from _runs(inner, one)


def _runs(inner: Computation, one: Instruction) -> Iterator[FusedCollective]:
    scattered = None
    last = one
    users = inner.users.get(one.name, ())
    if one.opcode == "all-reduce" and len(users) == 1 and users[0].opcode == "dynamic-slice":
        last = users[0]
        scattered = last.shapes
    targets = {user.attributes.get("custom_call_target") for user in inner.users.get(last.name, ())}
    starts = _STARTS in targets
    if starts or (_ENDS not in targets and not inner.name.startswith(GOES_ON)):
        yield FusedCollective(inner, one, scattered, starts)


def done_in(module: HloModule, fusion: Instruction) -> bool:
    """Whether a fusion waits for a collective that another one started."""
    inner = module.computations.get(fusion.called("calls"))
    return inner is not None and any(
        one.attributes.get("custom_call_target") == _ENDS for one in inner.instructions.values()
    )
