"""Which line of the user's an instruction stems from, where the compiler kept no note of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from outlay.analysis.hlo.frames import Frames
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction

# Farther relatives than these tell of other lines.
_MAX_VISITS = 40
_REDUCING = ("all-reduce", "reduce-scatter")


def origin_of(module: HloModule, computation: str, instruction: Instruction) -> tuple[str, Frames]:
    """The op name and the source lines, innermost first: an instruction's own, else those of its nearest relative.

    Of a reduction that is what made its operand; of all else what takes the result, since a gather is there for the
    sake of its consumer.

    Args:
        module: the program.
        computation: the name of the computation that the instruction stands in.
        instruction: such as a collective.

    Returns:
        Both empty where no relative has them either.
    """
    if instruction.op_name and instruction.frames:
        return instruction.op_name, instruction.frames
    relatives = list(_relatives(module.computations[computation], instruction))
    # In a fusion the note may stand at the fusion itself.
    relatives += [caller for _, caller in module.callers.get(computation, ()) if "fusion" in caller.opcode]
    with_frames = next((one for one in relatives if one.frames), None)
    if with_frames is not None:
        return instruction.op_name or with_frames.op_name, with_frames.frames
    return instruction.op_name or next((one.op_name for one in relatives if one.op_name), ""), ()


def _relatives(computation: Computation, instruction: Instruction) -> Iterable[Instruction]:
    if instruction.opcode.startswith(_REDUCING):
        yield from _producers(computation, instruction)
        yield from _consumers(computation, instruction)
    else:
        yield from _consumers(computation, instruction)
        yield from _producers(computation, instruction)


def _producers(computation: Computation, instruction: Instruction) -> Iterable[Instruction]:
    """What the operands were made by, nearest first."""
    yield from _nearest_first(
        instruction, lambda one: [found for name in one.operands if (found := computation.instructions.get(name))]
    )


def _consumers(computation: Computation, instruction: Instruction) -> Iterable[Instruction]:
    """What takes the result, nearest first."""
    yield from _nearest_first(instruction, lambda one: computation.users.get(one.name, ()))


def _nearest_first(
    start: Instruction, following: Callable[[Instruction], Iterable[Instruction]]
) -> Iterable[Instruction]:
    pending, seen = deque([start]), {start.name}
    for _ in range(_MAX_VISITS):
        if not pending:
            return
        for one in following(pending.popleft()):
            if one.name not in seen:
                seen.add(one.name)
                pending.append(one)
                yield one
