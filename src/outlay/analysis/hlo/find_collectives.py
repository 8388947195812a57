"""Every collective of a compiled program, however it is spelled."""

from __future__ import annotations

from outlay.analysis.hlo.collective import CollectiveKind, HloCollective
from outlay.analysis.hlo.dtypes import dtype_names, total_bytes
from outlay.analysis.hlo.fused import fused_collectives
from outlay.analysis.hlo.groups import groups_of
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, Shape
from outlay.analysis.hlo.loops import runs_per_step

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
