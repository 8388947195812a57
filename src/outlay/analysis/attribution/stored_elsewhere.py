"""What a step pays for memory that it does not take: copies to and from the host, and products computed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlay.analysis.attribution.leaves import Leaf
from outlay.analysis.attribution.program_facts import HostCopyFacts, RecomputedFacts
from outlay.analysis.attribution.who_asked import origin_of
from outlay.analysis.hlo.hlo_module import HloModule, Instruction, SourceLine
from outlay.analysis.hlo.host_copies import host_copy
from outlay.analysis.hlo.loops import runs_per_step
from outlay.analysis.hlo.reach import outputs_reached
from outlay.analysis.hlo.trace import leaf_parameter
from outlay.analysis.work.compiled import CompiledWork

_AGAIN = "rematted_computation"
"""The scope that JAX opens around what a backward pass computes again."""


def host_copies(module: HloModule, leaves: Sequence[Leaf]) -> tuple[HostCopyFacts, ...]:
    """All copies between device and host, most bytes first, those of one line and leaf together.

    Args:
        module: the program.
        leaves: its parameters.
    """
    paths = {leaf.number: leaf.path for leaf in leaves}
    found: dict[tuple[bool, str, str, SourceLine | None], tuple[int, int]] = {}
    for name, (runs, _) in runs_per_step(module).items():
        block = module.computations[name]
        for one in block.instructions.values():
            copy = host_copy(one, block)
            if copy is not None:
                origin = origin_of(module, name, one)
                leaf = _leaf(module, name, one, paths, to_host=copy.to_host)
                source = None if leaf else origin.source
                key = copy.to_host, leaf, "" if leaf else origin.phase, source
                num_runs, num_bytes = found.get(key, (0, 0))
                found[key] = num_runs + runs, num_bytes + copy.num_bytes * runs
    facts = [HostCopyFacts(*key, *totals) for key, totals in found.items()]
    return tuple(sorted(facts, key=lambda fact: -fact.bytes_per_step))


def recomputed(module: HloModule, work: CompiledWork) -> tuple[RecomputedFacts, ...]:
    """The products that a backward pass computes again, by line, most FLOPs first.

    Args:
        module: the program.
        work: what its instructions compute.
    """
    places = {one.name: name for name, block in module.computations.items() for one in block.instructions.values()}
    found: dict[tuple[str, SourceLine | None], tuple[int, float]] = {}
    for operation in work.operations:
        place = places.get(operation.name, "")
        one = module.computations[place].instructions[operation.name] if place else None
        if one is None or not operation.flops or not _is_again(module, one):
            continue
        origin = origin_of(module, place, one)
        key = origin.module, origin.source
        num_runs, flops = found.get(key, (0, 0.0))
        found[key] = num_runs + operation.runs, flops + operation.flops * operation.runs
    facts = [RecomputedFacts(*key, *totals) for key, totals in found.items()]
    return tuple(sorted(facts, key=lambda fact: -fact.flops_per_step))


def _leaf(module: HloModule, computation: str, one: Instruction, paths: Mapping[int, str], *, to_host: bool) -> str:
    """The leaf of the state that is fetched, or whose new value is sent back; empty where it is neither."""
    if not to_host:
        traced = leaf_parameter(module, computation, one.operands[0]) if one.operands else None
        return paths.get(traced.parameter, "") if traced else ""
    reached = outputs_reached(module, computation, one.name, None)
    donated = dict(module.input_output_alias)
    into = {paths.get(donated[output,], "") for output in reached if (output,) in donated}
    return into.pop() if len(into) == 1 else ""


def _is_again(module: HloModule, one: Instruction) -> bool:
    """Whether an instruction, or in a fusion the product in it, is of what is computed again."""
    fused = module.computations.get(one.called("calls")) if one.opcode.startswith("fusion") else None
    inside = [inner for inner in fused.instructions.values() if inner.opcode in ("dot", "convolution")] if fused else []
    return any(_AGAIN in each.op_name for each in (inside or [one]))
