"""What a device holds in a step, and what the step pays in order to hold less.

The first are the compiler's own figures, the plan's shares of them, and the largest values. The second are copies to
and from the host, and products that a backward pass recomputes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from outlay.analysis.attribution.leaves import BATCH, OPTIMIZER, OTHER, PARAMS, Leaf, role_by_path
from outlay.analysis.attribution.program_facts import HostCopyFacts, MemoryFacts, RecomputedFacts, ValueFacts
from outlay.analysis.attribution.provenance import origin_of
from outlay.analysis.cost.constants import constants_of
from outlay.analysis.hlo.dataflow import leaf_parameter, outputs_reached
from outlay.analysis.hlo.hlo_memory import constant_bytes, host_bytes, host_copy, peak_bytes
from outlay.analysis.hlo.hlo_module import HloModule, Instruction, Shape, SourceLine, shape_bytes
from outlay.analysis.hlo.loops import runs_per_step
from outlay.analysis.hlo.opcodes import BARRIERS, CONTROL, NAMES
from outlay.analysis.work.compiled import CompiledWork
from outlay.core.memory_pool import MEM_FRACTION, asked_fraction
from outlay.core.quantities import format_bytes
from outlay.devices.target import Target
from outlay.layout.plan import Plan

NUM_LARGEST = 10

_NO_MEMORY = NAMES | CONTROL | BARRIERS | {"after-all", "partition-id", "replica-id", "dynamic-update-slice"}
"""Operations that only name memory, or write in place."""

_AGAIN = "rematted_computation"
"""The scope that JAX opens around what a backward pass recomputes."""

Facts = TypeVar("Facts")


def memory_facts(
    module: HloModule,
    stats: Any,
    leaves: Sequence[Leaf],
    plan: Plan | None,
    target: Target | None,
    *,
    is_cpu: bool,
    roles: Mapping[str, str] | None = None,
) -> MemoryFacts:
    """Return the memory of one device.

    Args:
        module: the program.
        stats: the result of `compiled.memory_analysis()`.
        leaves: the program's parameters.
        plan: where state and batch live, if there is one; it also knows the leaves that the step does not read.
        target: the hardware, for its memory.
        is_cpu: whether the program was compiled for CPU devices.
        roles: what the leaves of the state are, as `roles_of` says.
    """
    held = held_by(plan, leaves, roles or {})
    # The memory of CPU devices is the host's, so the compiler counts what is on the host as theirs.
    on_host = host_bytes(module, stats)
    apart = plan.host_bytes_per_device[plan.mesh.device_ids[0]] if plan and not on_host else 0
    arguments, outputs = stats.argument_size_in_bytes - apart, stats.output_size_in_bytes - apart
    donated, temporaries = stats.alias_size_in_bytes - apart, stats.temp_size_in_bytes
    peak = peak_bytes(module, stats, is_cpu=is_cpu) - apart
    return MemoryFacts(
        params=held["params"],
        optimizer=held["optimizer"],
        other_state=sum(held.values()) - sum(held[role] for role in (PARAMS, OPTIMIZER, BATCH)),
        other_kinds=tuple((role, size) for role, size in held.items() if role not in (PARAMS, OPTIMIZER, BATCH, OTHER)),
        batch=held["batch"],
        arguments=arguments,
        outputs=outputs,
        donated=donated,
        temporaries=temporaries,
        constants=constant_bytes(module),
        peak=peak,
        on_host=on_host + apart,
        capacity=target.hardware.memory_bytes if target else None,
        **_of_the_runtime(peak, target),
        largest=largest_values(module, leaves),
        values_on_host=stats.host_temp_size_in_bytes,
    )


def _of_the_runtime(peak: int, target: Target | None) -> dict[str, Any]:
    """Return what the runtime needs besides a peak, and what it can take."""
    if target is None:
        return {"needed": peak, "pool": 0, "most": 0, "assumed": ()}
    known, capacity = constants_of(target.hardware), target.hardware.memory_bytes
    is_gpu = target.hardware.kind == "gpu"
    fraction = asked_fraction() if is_gpu else None
    asked = fraction.share if fraction else known.pool
    assumed = []
    if known.fragments or known.runtime:
        assumed.append(
            f"{known.fragments:.0%} is lost between blocks, and the runtime keeps {format_bytes(int(known.runtime))} "
            "for CUDA's context, NCCL's channels and cuDNN"
        )
    if asked < 1:
        by = (
            f"by {fraction.variable}"
            if fraction
            else f"as JAX does unless {MEM_FRACTION} says otherwise"
            if is_gpu
            else "of TPUs"
        )
        assumed.append(f"{asked:.3g} of the memory is for the program, {by}")
    return {
        "needed": int(peak * (1 + known.fragments)),
        "pool": int(asked * capacity),
        # However large a pool is asked for, CUDA and its libraries need their own memory beside it (decision 28).
        "most": int(min(max(known.most, asked) * capacity, capacity - known.runtime)),
        "assumed": tuple(assumed),
    }


def held_by(plan: Plan | None, leaves: Sequence[Leaf], roles: Mapping[str, str]) -> Mapping[str, int]:
    """Return bytes in one device's memory by role.

    Args:
        plan: where state and batch live, if there is one.
        leaves: the program's parameters.
        roles: what the leaves of the state are, by path; of others their names decide.
    """
    held = {PARAMS: 0, OPTIMIZER: 0, BATCH: 0, OTHER: 0}
    sizes = [(leaf.part, 0 if leaf.shape.is_on_host else leaf.num_bytes) for leaf in leaves]
    if plan is not None:
        planned = [(BATCH, leaf) for leaf in plan.of_kind("batch")]
        planned += [(roles.get(leaf.path, role_by_path(leaf.path, leaf)), leaf) for leaf in plan.state]
        sizes = [(role, 0 if leaf.stored == "host" else leaf.bytes_per_device) for role, leaf in planned]
    for role, size in sizes:
        held[role] = held.get(role, 0) + size
    return held


def largest_values(module: HloModule, leaves: Sequence[Leaf]) -> tuple[ValueFacts, ...]:
    """Return the largest values of the scheduled program, except those inside of fusions.

    Values that live at different times may share memory.
    """
    paths = {leaf.number: leaf.path for leaf in leaves}
    largest = heapq.nlargest(NUM_LARGEST, _values(module), key=lambda value: shape_bytes(value[2]))
    return tuple(_facts(module, *value, paths) for value in largest if shape_bytes(value[2]))


def _values(module: HloModule) -> Iterator[tuple[str, Instruction, Shape]]:
    """Yield (computation, instruction, array) for everything that takes memory of its own."""
    for name in runs_per_step(module):
        for one in module.computations[name].instructions.values():
            # What a start returns is its operands again, and what its done returns.
            is_argument = one.opcode == "parameter" and name == module.entry
            if is_argument or not (one.opcode in _NO_MEMORY or one.opcode.endswith("-start") or _in_place(module, one)):
                yield from ((name, one, shape) for shape in one.shapes if not shape.is_on_host)


def _in_place(module: HloModule, one: Instruction) -> bool:
    """Return whether a fusion updates a part of its operand in place and returns it."""
    fused = module.fused(one)
    inside = fused.root if fused else None
    while fused and inside and inside.opcode in ("bitcast", "copy", "convert") and inside.operands:
        inside = fused.instructions.get(inside.operands[0])
    return inside is not None and inside.opcode == "dynamic-update-slice"


def _facts(module: HloModule, computation: str, one: Instruction, shape: Shape, paths: Mapping[int, str]) -> ValueFacts:
    if one.opcode == "parameter":
        path = paths.get(int(one.value), "")
        return ValueFacts(one.name, shape.dims, shape.dtype, shape_bytes(shape), path or "an argument", None)
    words, source = value_in_words(module, computation, one)
    return ValueFacts(one.name, shape.dims, shape.dtype, shape_bytes(shape), words, source)


def value_in_words(module: HloModule, computation: str, one: Instruction) -> tuple[str, SourceLine | None]:
    """Describe the operation that computes a value, its module and its part of the step; and return its line.

    Args:
        module: the program.
        computation: the name of the computation that it stands in.
        one: the instruction.
    """
    origin = origin_of(module, computation, one)
    what = "kept by a loop" if origin.primitive in ("while", "scan") else origin.primitive or one.opcode
    return origin.in_words(what), origin.source


def host_copies(module: HloModule, leaves: Sequence[Leaf]) -> tuple[HostCopyFacts, ...]:
    """Return all copies between device and host, grouped by line and leaf, most bytes first."""
    paths = {leaf.number: leaf.path for leaf in leaves}

    def counted() -> Iterator[tuple[Any, int, int]]:
        for name, (runs, _) in runs_per_step(module).items():
            block = module.computations[name]
            for one in block.instructions.values():
                if copy := host_copy(one, block):
                    origin = origin_of(module, name, one)
                    leaf = _leaf(module, name, one, paths, to_host=copy.to_host)
                    # Copies of a leaf belong together, whichever lines of the step they serve.
                    where = ("", None) if leaf else (origin.phase, origin.source)
                    yield (copy.to_host, leaf, *where), runs, copy.num_bytes * runs

    return _added_up(HostCopyFacts, counted())


def recomputed(module: HloModule, work: CompiledWork) -> tuple[RecomputedFacts, ...]:
    """Return the products that a backward pass recomputes, by line, most FLOPs first."""

    def counted() -> Iterator[tuple[Any, int, float]]:
        for operation in work.operations:
            if not operation.flops or operation.name not in module.places:
                continue
            computation, one = module.places[operation.name]
            if _is_again(module, one):
                origin = origin_of(module, computation.name, one)
                yield (origin.module, origin.source), operation.runs, operation.flops * operation.runs

    return _added_up(RecomputedFacts, counted())


def _added_up(facts: Callable[..., Facts], counted: Iterable[tuple[Any, int, float]]) -> tuple[Facts, ...]:
    """Add up runs and amounts of equal facts, the largest amount first."""
    totals: dict[Any, tuple[int, float]] = {}
    for key, runs, amount in counted:
        num_runs, amounts = totals.get(key, (0, 0))
        totals[key] = num_runs + runs, amounts + amount
    ordered = sorted(totals.items(), key=lambda item: -item[1][1])
    return tuple(facts(*key, *total) for key, total in ordered)


def _leaf(module: HloModule, computation: str, one: Instruction, paths: Mapping[int, str], *, to_host: bool) -> str:
    """Return the leaf of the state that is fetched, or whose new value is sent back; else empty."""
    if not to_host:
        number = leaf_parameter(module, computation, one.operands[0]) if one.operands else None
        return "" if number is None else paths.get(number, "")
    # A leaf on the host is sent back as an output; donation tells which leaf that is the new value of.
    reached = outputs_reached(module, computation, one.name, None)
    donated = dict(module.input_output_alias)
    into = {paths.get(donated[output,], "") for output in reached if (output,) in donated}
    return into.pop() if len(into) == 1 else ""


def _is_again(module: HloModule, one: Instruction) -> bool:
    """Return whether an instruction, or the product in a fusion, is recomputed."""
    fused = module.fused(one)
    inside = [inner for inner in fused.instructions.values() if inner.opcode in ("dot", "convolution")] if fused else []
    return any(_AGAIN in each.op_name for each in (inside or [one]))
