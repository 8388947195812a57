"""Every collective of a compiled program, as one value whatever its spelling in the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from outlay.analysis.hlo.groups import groups_of
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction
from outlay.analysis.hlo.hlo_shapes import Shape, dtype_names, total_bytes
from outlay.analysis.hlo.loops import runs_per_step

CollectiveKind = Literal[
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
]

KINDS: dict[str, CollectiveKind] = {
    "all-gather": "all-gather",
    "all-reduce": "all-reduce",
    "reduce-scatter": "reduce-scatter",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "collective-permute",
    "collective-broadcast": "collective-broadcast",
}
_OPCODES = frozenset(KINDS) | frozenset(f"{opcode}-start" for opcode in KINDS)

_STARTS, _ENDS = '"AsyncCollectiveStart"', '"AsyncCollectiveDone"'
# Fusions of this name compute something while a collective that started before goes on; they name it once more.
GOES_ON = "async_collective_fusion"


@dataclass(frozen=True)
class HloCollective:
    """One collective: start and done of an asynchronous one are one.

    Attributes:
        kind: what it does.
        instruction: the instruction, of an asynchronous collective its start.
        computation: the name of the computation it stands in.
        groups: the devices that exchange with one another, as positions in the program's device assignment; of a
            permutation its (source, target) pairs.
        operand_bytes: on one device, padding not counted.
        result_bytes: on one device.
        dtype: HLO's name of what is moved; several are joined by "+".
        count: how often it runs in a step, trip counts of the loops around it multiplied.
        count_is_exact: False where a loop's trip count is not in the text; it then counts once.
        is_async: whether it has a start and a done, so that the device may compute meanwhile.
    """

    kind: CollectiveKind
    instruction: Instruction
    computation: str
    groups: tuple[tuple[int, ...], ...]
    operand_bytes: int
    result_bytes: int
    dtype: str
    count: int
    count_is_exact: bool
    is_async: bool

    @property
    def group_size(self) -> int:
        """How many devices take part in one exchange."""
        return max((len(group) for group in self.groups), default=1)


def collectives_of(module: HloModule) -> tuple[HloCollective, ...]:
    """The collectives that a step runs; start and done of one are one.

    Args:
        module: the program.

    Returns:
        Each once, with how often it runs, in the order of the computations' text.
    """
    runs = runs_per_step(module)
    fusing = _computations_with_collectives(module)
    found: list[HloCollective] = []
    for computation in module.computations.values():
        if computation.name not in runs:
            continue
        count, exact = runs[computation.name]
        waits = any(caller.opcode == "async-start" for _, caller in module.callers.get(computation.name, ()))
        for one in computation.instructions.values():
            if one.opcode in _OPCODES:
                found.append(_collective(module, computation, one, (count, exact), is_async=waits or _is_async(one)))
            elif one.opcode == "fusion" and one.called("calls") in fusing:
                found += [
                    _collective(
                        module, fused.computation, fused.instruction, (count, exact), fused.scattered, fused.is_async
                    )
                    for fused in fused_collectives(module, one, _OPCODES)
                ]
    return tuple(found)


def _computations_with_collectives(module: HloModule) -> set[str]:
    """Names of the computations that hold a collective, or a fusion that does."""
    holding = [
        name
        for name, computation in module.computations.items()
        if any(one.opcode in _OPCODES for one in computation.instructions.values())
    ]
    seen = set(holding)
    while holding:
        for caller, fusion in module.callers.get(holding.pop(), ()):
            if fusion.opcode == "fusion" and caller not in seen:
                seen.add(caller)
                holding.append(caller)
    return seen


def _collective(
    module: HloModule,
    computation: Computation,
    one: Instruction,
    runs: tuple[int, bool],
    scattered: tuple[Shape, ...] | None = None,
    is_async: bool = False,
) -> HloCollective:
    operands = _operand_shapes(computation, one)
    result = scattered or _result(one, len(operands))
    moved = (operands[:1] if one.opcode.startswith("ragged") else operands) or result
    count, exact = runs
    return HloCollective(
        kind="reduce-scatter" if scattered else KINDS[one.opcode.removesuffix("-start")],
        instruction=one,
        computation=computation.name,
        groups=groups_of(module, one),
        operand_bytes=total_bytes(moved),
        result_bytes=total_bytes(result),
        dtype=dtype_names(moved),
        count=count,
        count_is_exact=exact,
        is_async=is_async,
    )


def _operand_shapes(computation: Computation, one: Instruction) -> tuple[Shape, ...]:
    """What goes in; a ragged exchange takes its output and four lists of offsets besides."""
    operands = (computation.instructions.get(operand) for operand in one.operands)
    return tuple(shape for operand in operands if operand for shape in operand.shapes)


def _result(one: Instruction, num_operands: int) -> tuple[Shape, ...]:
    """What comes out: most starts give their operands, their results, and contexts that hold no data."""
    if not one.opcode.endswith("-start") or len(one.shapes) < 2 * num_operands:
        return one.shapes
    return one.shapes[num_operands : 2 * num_operands]


def _is_async(one: Instruction) -> bool:
    """Whether it has a start, and one that does not wait, as the GPU compiler may decide afterwards."""
    return one.opcode.endswith("-start") and '"is_sync":true' not in one.attributes.get("backend_config", "")


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
