"""`outlay.explain` and `outlay.estimate`: communication, memory, work and step time of a compiled program."""

from __future__ import annotations

import functools
import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jax.sharding import AbstractMesh, Mesh

from outlay.analysis.attribution.collective_facts import collective_facts, with_waiting
from outlay.analysis.attribution.compiler_output import CompilerOutput, MemoryStats
from outlay.analysis.attribution.leaves import Leaf, layout_facts, leaves_of, roles_of
from outlay.analysis.attribution.memory_facts import host_copies, memory_facts, recomputed
from outlay.analysis.attribution.program_facts import CollectiveFacts, MemoryFacts, ValueFacts, WorkFacts
from outlay.analysis.attribution.timeline import costliest_operations, timeline
from outlay.analysis.cost.estimate import Estimate
from outlay.analysis.cost.links import locations_of
from outlay.analysis.cost.price import check_num_devices, price, time_on_lanes
from outlay.analysis.cost.schedule import schedule_of
from outlay.analysis.findings.compiler_messages import message_findings
from outlay.analysis.findings.finding import Evidence, Finding
from outlay.analysis.findings.findings import find, ranked
from outlay.analysis.findings.memory import gave_up
from outlay.analysis.hlo.hlo_module import HloModule
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.parts.part_costs import explain_placed
from outlay.analysis.parts.part_facts import PlacedExplanation
from outlay.analysis.work.compiled import CompiledWork, compiled_work
from outlay.core.array_leaves import num_bytes
from outlay.core.disk_cache import DiskCache, cache_folder
from outlay.core.error_types import ExplainError
from outlay.core.jax_tracing import operations
from outlay.core.public_names import called_as
from outlay.core.quantities import counted, format_bytes, listed, plural
from outlay.core.runtime_flags import versions
from outlay.devices.compile_only import target_of
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target
from outlay.program.compiler_options import RequestedOptions
from outlay.program.program import Program
from outlay.report.explain.explained_program import ExplainedProgram, compile_or_read
from outlay.report.explain.explanation import Explanation
from outlay.report.explain.throughput import throughput_of

if TYPE_CHECKING:
    from outlay.analysis.attribution.live_memory import LiveMemory
    from outlay.analysis.cost.evidence import PublishedRun


def explain(
    x: Any,
    *args: Any,
    target: Target | str | None = None,
    mesh: Mesh | AbstractMesh | None = None,
    compiler_options: RequestedOptions = "preset",
    cache: bool = False,
    **kwargs: Any,
) -> Explanation:
    """Report what a compiled program communicates, holds and computes; compile it if necessary, never run it.

    The report lists every collective of the optimized program with its mesh axes, its bytes, its runs per step, the
    phase of the step, the module, your source line, and the leaf that it moves. Memory figures are the compiler's own.
    Findings name what costs more than necessary, and the edit that fixes it; they include the compiler's own warnings
    about reshardings that it could not do efficiently.

    For a program in mode placed, the report gives the cost of each part, the traffic between parts, and the best
    speedup over one device that any placement of whole parts can reach.

    Args:
        x: a program; a jitted function, with its arguments; `jax.stages.Lowered` or `Compiled`; the text of a compiled
            program, or a `Path` to it.
        *args: the arguments of a jitted function, as arrays or `jax.ShapeDtypeStruct` with shardings.
        target: the hardware for memory and times, such as `"h100:1x8"`; by default that of the mesh.
        mesh: the mesh, if neither the program nor the shardings have one. A function is then traced under it.
        compiler_options: for a function that is not compiled yet, as in `outlay.program`; a program has its own.
        cache: reuse the compiler's output from the user's cache folder, `$XDG_CACHE_HOME/outlay`, if the same program
            was compiled before, and store it there otherwise. A program found there compiles when it first runs.
        **kwargs: the keyword arguments of a jitted function.

    Raises:
        ExplainError: the object cannot be compiled or read, or cannot be traced with these arguments; the target or the
            mesh has another number of devices; or the compiler rejects the program for another reason than memory.
        TargetError: there is no such target.

    Example:
        >>> sharded = jax.NamedSharding(outlay.mesh(data=8), P("data"))
        >>> report = outlay.explain(jax.jit(jnp.sum), jax.ShapeDtypeStruct((64,), jnp.float32, sharding=sharded))
        >>> [(one.kind, one.axes, one.bytes_moved) for one in report.collectives]
        [('all-reduce', ('data',), 7)]
    """
    requested = Target.parse(target) if isinstance(target, str) else target
    # With arguments it is refused below, like any other program.
    if isinstance(x, Program) and x.device_groups and not (args or kwargs):
        return _of_parts(explain_placed(x, requested), x)
    if isinstance(x, Program) and x.schedule is not None:
        raise ExplainError(
            "stages of mode placed are many programs, whose exchanges and times are not put together yet\n"
            '  fix: mode="auto" for the same layout as one program; print(program.schedule) draws who works when'
        )
    subject = compile_or_read(x, args, kwargs, mesh, compiler_options, DiskCache(cache_folder()) if cache else None)
    start = time.perf_counter()
    info = MeshInfo.of(subject.mesh) if subject.mesh is not None else None
    hardware = requested or (target_of(subject.mesh) if subject.mesh is not None else None)
    if subject.output is None or not subject.output.text:
        return _of_failure(subject, info, hardware, start)
    module = parse_hlo(subject.output.text)
    if module.cut_in:
        num_lines = len(subject.output.text.splitlines())
        raise ExplainError(
            f"the text of the program is cut short: after {counted(num_lines, 'line')} it ends {module.cut_in}"
            "\n  fix: pass all of jax.jit(f).lower(...).compile().as_text()"
        )
    num_devices = _num_devices(module, info)
    _check_sizes(num_devices, info, requested)
    notes = list(subject.notes)
    if hardware is not None and hardware.num_devices != num_devices:
        # Nobody asked for the mesh's own target, so that it is too large is no mistake.
        notes.append(f"a part of {hardware}: without times, which are for all of it; pass target= for the part")
        hardware = None
    return _explanation(replace(subject, notes=tuple(notes)), subject.output, module, info, hardware, start)


def _of_parts(parts: PlacedExplanation, program: Program) -> Explanation:
    """Explain many compiled programs: facts about a single program are empty, `by_parts` has all of them."""
    return Explanation(
        name=parts.name,
        target=parts.target,
        mesh=parts.mesh,
        findings=parts.findings,
        incomplete=parts.incomplete,
        notes=parts.notes,
        compiler_options=program.compiler_options,
        parse_seconds=parts.seconds,
        by_parts=parts,
    )


def _explanation(
    subject: ExplainedProgram,
    output: CompilerOutput,
    module: HloModule,
    mesh: MeshInfo | None,
    target: Target | None,
    start: float,
) -> Explanation:
    leaves = leaves_of(module, output.passed, roles_of(subject.program.state_shapes) if subject.program else None)
    locations = locations_of(target, mesh) if target else ()
    collectives = collective_facts(module, leaves, mesh, target, locations)
    done = compiled_work(module)
    work = _work(subject, module, done, mesh)
    memory = _memory(subject, output.memory, module, leaves, target)
    schedule = schedule_of(module, done, target, mesh)
    timed = time_on_lanes(schedule) if target else None
    collectives = with_waiting(collectives, timed) if timed else collectives
    estimated = price(schedule, timed=timed) if target else None
    seconds = estimated.seconds if estimated else None
    computing = estimated.seconds - estimated.parts.get("communication", 0.0) if estimated else None
    evidence = Evidence(
        module,
        collectives,
        leaves,
        mesh,
        memory,
        work,
        subject.program,
        output.state,
        computing,
        target,
        tuple(timed.stretches) if timed else (),
        subject.options,
    )
    again = recomputed(module, done)
    from_messages = message_findings(subject.messages, module, leaves, output.text, mesh)
    return Explanation(
        name=subject.name,
        target=target,
        mesh=mesh,
        collectives=collectives,
        memory=memory,
        work=work,
        find_live_memory=functools.partial(_live_memory, module, leaves),
        estimate=estimated,
        timeline=timeline(timed, collectives) if timed else (),
        operations=costliest_operations(module, schedule, timed) if timed else (),
        findings=_with_rules(ranked([*find(evidence), *from_messages], seconds), subject.program, seconds),
        messages=subject.messages,
        incomplete=tuple(_incomplete(subject, module, done)),
        notes=(*per_graph_step_notes(subject.program, collectives), *subject.notes, *_notes(mesh, target, memory)),
        compiler_options=subject.options,
        trace_seconds=subject.trace_seconds,
        compile_seconds=subject.seconds,
        from_cache=subject.from_cache,
        parse_seconds=time.perf_counter() - start,
        hlo=module,
        schedule=schedule,
        host_copies=host_copies(module, leaves),
        recomputed=again,
        throughput=throughput_of(subject.program.plan, estimated, target, work, again)
        if subject.program and estimated and target
        else None,
        nearest_published=_nearest_published(subject.program, target, work),
        layout=layout_facts(subject.program.layout, subject.program.plan) if subject.program else None,
        versions=", ".join(f"{name} {version}" for name, version in versions(("outlay", "jax")).items() if version),
    )


def _live_memory(module: HloModule, leaves: Sequence[Leaf]) -> LiveMemory | None:
    from outlay.analysis.attribution.live_memory import live_memory  # a short text does without

    return live_memory(module, leaves)


def _with_rules(findings: tuple[Finding, ...], program: Program | None, seconds: float | None) -> tuple[Finding, ...]:
    """Offer rules with the findings, where one of them is about a value that a rule could place."""
    if all(one.spec is None for one in findings):
        return findings
    from outlay.analysis.findings.offered_rules import with_rules

    return with_rules(findings, program, seconds)


def _nearest_published(program: Program | None, target: Target | None, work: WorkFacts) -> tuple[PublishedRun, ...]:
    if program is None or target is None or target.hardware.kind == "cpu":
        return ()
    from outlay.report.explain.explain_evidence import evidence_of

    return evidence_of(program.plan, target, work)


def _of_failure(subject: ExplainedProgram, mesh: MeshInfo | None, target: Target | None, start: float) -> Explanation:
    """Explain what is known if the compiler ran out of memory."""
    if not subject.failure:
        raise ExplainError(f"{subject.name}: the compiler gives no text of the compiled program on this platform")
    return Explanation(
        name=subject.name,
        target=target,
        mesh=mesh,
        findings=ranked(
            [
                gave_up(subject.failure, largest_traced(subject.jaxpr) if subject.jaxpr else ()),
                *message_findings(subject.messages, mesh=mesh),
            ]
        ),
        messages=(*subject.messages, subject.failure),
        incomplete=("the compiler ran out of memory and produced no program: collectives and times are unknown",),
        notes=subject.notes,
        compiler_options=subject.options,
        trace_seconds=subject.trace_seconds,
        compile_seconds=subject.seconds,
        from_cache=subject.from_cache,
        parse_seconds=time.perf_counter() - start,
    )


def _num_devices(module: HloModule, mesh: MeshInfo | None) -> int:
    """Count the devices of a program. On a multi-slice TPU the program is that of one slice."""
    num = module.num_partitions
    slices = Target.parse(mesh.target).num_slices if mesh is not None and mesh.target else 1
    return num * slices if mesh is not None and mesh.num_devices == num * slices else num


def _check_sizes(num: int, mesh: MeshInfo | None, target: Target | None) -> None:
    if mesh is not None and mesh.num_devices != num:
        raise ExplainError(
            f"the program is for {counted(num, 'device')}, but {mesh} has {mesh.num_devices}\n"
            "  fix: pass the mesh that it was compiled for, or none"
        )
    if target is not None:
        check_num_devices(num, target)


def _work(subject: ExplainedProgram, module: HloModule, done: CompiledWork, mesh: MeshInfo | None) -> WorkFacts:
    flops = None if subject.traced is None else subject.traced.flops / _num_devices(module, mesh)
    return WorkFacts(flops, done.flops, done.bytes_accessed, done.flops_by_dtype)


def _memory(
    subject: ExplainedProgram,
    stats: MemoryStats | None,
    module: HloModule,
    leaves: tuple[Leaf, ...],
    target: Target | None,
) -> MemoryFacts | None:
    if stats is None:
        return None
    is_cpu = not isinstance(subject.mesh, Mesh) or subject.mesh.devices.flat[0].platform == "cpu"
    plan = subject.program.plan if subject.program else None
    roles = roles_of(subject.program.state_shapes) if subject.program else None
    return memory_facts(module, stats, leaves, plan, target, is_cpu=is_cpu, roles=roles)


def _incomplete(subject: ExplainedProgram, module: HloModule, done: CompiledWork) -> Iterator[str]:
    if module.skipped:
        shown = listed([f"{number}: {text.strip()[:60]!r}" for number, text in module.skipped])
        yield (f"{counted(len(module.skipped), 'line')} could not be parsed, so totals may be too low: line {shown}")
    yield from done.unknown
    yield from (f"in the traced program: {what}" for what in (subject.traced.unknown if subject.traced else ()))


def _notes(mesh: MeshInfo | None, target: Target | None, memory: MemoryFacts | None) -> Iterator[str]:
    if mesh is not None and mesh.kind == "simulated":
        yield (
            "compiled for simulated CPU devices: collectives are roughly those of GPUs and TPUs (whose compilers also "
            "use reduce-scatter), memory is not: in one program, temporaries were off by a factor of 2.7 to 12"
        )
    if target and mesh and target.hardware.kind != "cpu" and mesh.kind == "simulated":
        yield f"times and capacity are those of {target}, whose own compiler may choose other collectives"
    if memory is not None and memory.largest:
        yield from (f"memory: {what}" for what in memory.assumed)
        yield "the largest arrays are those of the scheduled program; some may reuse the memory of others"


def per_graph_step_notes(program: Program | None, collectives: Sequence[CollectiveFacts]) -> tuple[str, ...]:
    """Note the figures for one graph step if a step of the program is many steps of a graph; otherwise nothing.

    Args:
        program: the program, if there is one.
        collectives: its collectives.
    """
    if program is None or not program.is_graph:
        return ()
    num = program.num_steps_at_once
    # What runs less often stands outside of the loop over the steps.
    repeated = [one for one in collectives if one.count >= num]
    runs = sum(one.count for one in repeated) / num
    often = f"{runs:g} {plural(runs, 'collective')}"
    sent = format_bytes(sum(one.bytes_per_step for one in repeated) / num)
    each = f"a device sends {sent} in {often}" if repeated else "nothing is sent"
    return (f"a step of this program is {num:,} steps of its graph; figures are for all {num:,}, and in one {each}",)


_NUM = 3


def largest_traced(jaxpr: Any) -> tuple[ValueFacts, ...]:
    """Find the largest arrays of a traced program, unsharded as on one device; each shape once.

    Args:
        jaxpr: the jaxpr of the program, closed or not.
    """
    made = [(eqn.primitive.name, out.aval) for eqn in operations(jaxpr) for out in eqn.outvars]
    arrays = [(name, aval) for name, aval in made if hasattr(aval, "shape") and hasattr(aval, "dtype")]
    names = {(tuple(aval.shape), str(aval.dtype)): name for name, aval in arrays}
    values = [
        ValueFacts("", shape, dtype, num_bytes(shape, dtype), name, None) for (shape, dtype), name in names.items()
    ]
    return tuple(heapq.nlargest(_NUM, values, key=lambda value: value.num_bytes))


@called_as("outlay.estimate(program)", html="Path('page.html').write_text(outlay.estimate(program).to_html())")
def estimate(x: Any, *args: Any, target: Target | str | None = None) -> Estimate:
    """Estimate the time of a step as a range, and list the assumptions.

    The compiled program determines what each device computes, reads, writes and communicates, in which order, and what
    overlaps; the target determines the speeds. Nothing runs. Pass an existing `Explanation` to avoid compiling again.

    Args:
        x: a program, a jitted function, the result of `outlay.explain`, or anything else that `outlay.explain` takes.
        *args: the arguments of a jitted function, as arrays or `jax.ShapeDtypeStruct`.
        target: the hardware, such as `"h100:32x8"`; by default that of the program's mesh.

    Raises:
        ExplainError: the object is not a program, the hardware is not known, or it has another number of devices.
        TargetError: there is no such target.

    Example:
        >>> def step(state, batch):
        ...     return {"w": state["w"] - 0.1 * (batch.T @ batch)}, {}
        >>> program = outlay.program(
        ...     step, lambda key: {"w": jax.random.normal(key, (64, 64))}, np.ones((128, 64), np.float32),
        ...     layout=outlay.fsdp(min_size=8) + outlay.data_parallel(), mesh=outlay.mesh(data=8))
        >>> estimated = outlay.estimate(program, target="h100:1x8")
        >>> estimated.dominated_by, estimated.seconds == sum(estimated.parts.values())
        ('communication', True)
    """
    hardware = Target.parse(target) if isinstance(target, str) else target
    explanation = x if isinstance(x, Explanation) else explain(x, *args, target=hardware)
    if explanation.by_parts is not None:
        raise ExplainError(
            "a program in mode placed has no single estimate: its parts run concurrently and wait for each other\n"
            "  fix: outlay.explain(program), which estimates each part and the traffic between them; or outlay choose, "
            "which measures"
        )
    if explanation.hlo is None:
        raise ExplainError(f"{explanation.name}: compilation failed, so there is no program to estimate\n{explanation}")
    if explanation.estimate is not None and hardware in (None, explanation.target):
        return explanation.estimate
    return price(schedule_of(explanation.hlo, compiled_work(explanation.hlo), hardware, explanation.mesh))
