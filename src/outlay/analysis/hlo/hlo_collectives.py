"""Find every collective of a compiled program, as one value whatever its form in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from outlay.analysis.hlo.groups import groups_of
from outlay.analysis.hlo.hlo_module import (
    Computation,
    HloModule,
    Instruction,
    Shape,
    dtype_names,
    once_per_module,
    total_bytes,
)
from outlay.analysis.hlo.loops import runs_per_step

CollectiveKind = Literal[
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast"
]

_KINDS: dict[str, CollectiveKind] = {kind: kind for kind in get_args(CollectiveKind)}
_KINDS["ragged-all-to-all"] = "all-to-all"
_OPCODES = frozenset(_KINDS) | frozenset(f"{opcode}-start" for opcode in _KINDS)

_OPCODES_AND_ENDS = _OPCODES | frozenset(f"{opcode}-done" for opcode in _OPCODES)

_STARTS, _ENDS = '"AsyncCollectiveStart"', '"AsyncCollectiveDone"'
# TPU fusions with this name compute while a collective that was started before continues; they name it again.
GOES_ON = "async_collective_fusion"

# Between slices TPUs exchange over the network: their hosts' runtime takes what is sent and hands on what comes of it.
_TRANSFER = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')


@dataclass(frozen=True)
class HloCollective:
    """One collective; the start and done of an asynchronous one are one.

    Attributes:
        kind: what it does.
        instruction: the instruction; for an asynchronous collective its start.
        computation: the name of its computation.
        groups: the devices that exchange with one another, as positions in the program's device assignment; for a
            permutation, its (source, target) pairs.
        operand_bytes: on one device, without padding.
        result_bytes: on one device.
        dtype: HLO's name of what is moved; several are joined by "+".
        count: how often it runs in a step: the product of the trip counts of the loops around it.
        count_is_exact: False if a loop's trip count is not in the text; it then counts once.
        is_async: whether it has a start and a done, so that the device may compute meanwhile.
        over_slices: whether TPUs exchange with their likes in other slices; it then has no groups, as the program is
            that of one slice.
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
    over_slices: bool = False

    @property
    def group_size(self) -> int:
        """How many devices take part in one exchange."""
        return max((len(group) for group in self.groups), default=1)


def is_collective(opcode: str) -> bool:
    """Return whether an opcode is a collective, or the start of one."""
    return opcode in _OPCODES


def has_collective(computation: Computation) -> bool:
    """Return whether a computation holds a collective, or the start or the end of one."""
    return not _OPCODES_AND_ENDS.isdisjoint(computation.opcodes)


@once_per_module
def collectives_of(module: HloModule) -> tuple[HloCollective, ...]:
    """Return the collectives that a step runs; start and done of one are one.

    Returns:
        Each once, with how often it runs, in the order of the computations' text.
    """
    runs = runs_per_step(module)
    collectives: list[HloCollective] = []
    for computation in module.computations.values():
        if computation.name not in runs:
            continue
        count = runs[computation.name]
        # Some compilers put a collective into a computation of its own, and start that.
        is_waited_for = any(caller.opcode == "async-start" for _, caller in module.callers.get(computation.name, ()))
        for one in computation.instructions.values():
            if is_collective(one.opcode):
                is_async = is_waited_for or _is_async(one)
                collectives.append(_collective(module, FusedCollective(computation, one, None, is_async), count))
            elif one.opcode == "send" and (kind := _TRANSFER.search(one.attributes.get("frontend_attributes", ""))):
                collectives.append(_between_slices(computation, one, kind[1], count))
            elif one.opcode == "fusion":
                collectives += [_collective(module, fused, count) for fused in fused_collectives(module, one)]
    return tuple(collectives)


@once_per_module
def _computations_with_collectives(module: HloModule) -> set[str]:
    """Return the names of computations that hold a collective, or a fusion that does."""
    pending = [
        name for name, computation in module.computations.items() if not _OPCODES.isdisjoint(computation.opcodes)
    ]
    seen = set(pending)
    while pending:
        for caller, fusion in module.callers.get(pending.pop(), ()):
            if fusion.opcode == "fusion" and caller not in seen:
                seen.add(caller)
                pending.append(caller)
    return seen


def _collective(module: HloModule, fused: FusedCollective, count: tuple[int, bool]) -> HloCollective:
    one = fused.instruction
    # A ragged exchange takes, besides what it moves, its output and four lists of offsets.
    operands = fused.computation.shapes(one.operands)
    result = fused.scattered or _result(one, len(operands))
    moved = (operands[:1] if one.opcode.startswith("ragged") else operands) or result
    return HloCollective(
        kind="reduce-scatter" if fused.scattered else _KINDS[one.opcode.removesuffix("-start")],
        instruction=one,
        computation=fused.computation.name,
        groups=groups_of(module, one),
        operand_bytes=total_bytes(moved),
        result_bytes=total_bytes(result),
        dtype=dtype_names(moved),
        count=count[0],
        count_is_exact=count[1],
        is_async=fused.is_async,
    )


def _between_slices(computation: Computation, send: Instruction, name: str, count: tuple[int, bool]) -> HloCollective:
    met = rendezvous(send)
    arrives = (one for one in computation.instructions.values() if one.opcode == "recv" and rendezvous(one) == met)
    return HloCollective(
        kind=_KINDS.get(name.lower().replace("_", "-"), "collective-permute"),  # which is called ONE_TO_ONE
        instruction=send,
        computation=computation.name,
        groups=(),
        operand_bytes=total_bytes(send.shapes[:1]),
        result_bytes=total_bytes(next(arrives, send).shapes[:1]),
        dtype=dtype_names(send.shapes[:1]),
        count=count[0],
        count_is_exact=count[1],
        is_async=True,
        over_slices=True,
    )


def rendezvous(one: Instruction) -> str:
    """Return the name that pairs a send of a TPU slice with its receive; empty for other instructions."""
    met = _RENDEZVOUS.search(one.attributes.get("frontend_attributes", ""))
    return met[1] if met else ""


def _result(one: Instruction, num_operands: int) -> tuple[Shape, ...]:
    """Return the results: most starts also return their operands, and contexts without data."""
    if not one.opcode.endswith("-start") or len(one.shapes) < 2 * num_operands:
        return one.shapes
    return one.shapes[num_operands : 2 * num_operands]


def _is_async(one: Instruction) -> bool:
    """Return whether it has a start that does not wait; the GPU compiler may decide afterwards that it does."""
    return one.opcode.endswith("-start") and '"is_sync":true' not in one.attributes.get("backend_config", "")


@dataclass(frozen=True)
class FusedCollective:
    """A collective that a compiler has put into a fusion, as the TPU compiler does.

    Attributes:
        computation: the fusion's.
        instruction: the collective.
        scattered: for a sum of which each device keeps a slice, which is a reduce-scatter, that slice; else None.
        is_async: whether the fusion only starts it.
    """

    computation: Computation
    instruction: Instruction
    scattered: tuple[Shape, ...] | None
    is_async: bool


def fused_collectives(module: HloModule, fusion: Instruction) -> Iterator[FusedCollective]:
    """Yield the collectives that a fusion runs or starts, not the ones that it only waits for."""
    pending, seen = [name for name in fusion.calls if name in _computations_with_collectives(module)], set()
    while pending:
        inner = module.computations.get(pending.pop())
        if inner is None or inner.name in seen:
            continue
        seen.add(inner.name)
        for one in inner.instructions.values():
            if one.opcode == "fusion":
                pending.append(one.called("calls"))
            elif is_collective(one.opcode):
                yield from _run_by(inner, one)


def _run_by(inner: Computation, one: Instruction) -> Iterator[FusedCollective]:
    scattered, last = None, one
    users = inner.users.get(one.name, ())
    if one.opcode == "all-reduce" and len(users) == 1 and users[0].opcode == "dynamic-slice":
        last = users[0]
        scattered = last.shapes
    targets = {user.attributes.get("custom_call_target") for user in inner.users.get(last.name, ())}
    starts = _STARTS in targets
    if starts or (_ENDS not in targets and not inner.name.startswith(GOES_ON)):
        yield FusedCollective(inner, one, scattered, starts)


def ends_collective(module: HloModule, fusion: Instruction) -> bool:
    """Return whether a fusion waits for a collective that another one started."""
    inner = module.fused(fusion)
    if inner is None or "custom-call" not in inner.opcodes:
        return False
    calls = (one for one in inner.instructions.values() if one.opcode == "custom-call")
    return any(one.attributes.get("custom_call_target") == _ENDS for one in calls)
