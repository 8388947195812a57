"""Explain a placed program: its parts are compiled one by one, and nothing is run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from outlay.analysis.cost.estimate import Estimate, Range
from outlay.analysis.cost.links import collective_seconds, payload_bytes
from outlay.analysis.cost.price import check_num_devices, price
from outlay.analysis.cost.schedule import Schedule, schedule_of
from outlay.analysis.findings.finding import Finding
from outlay.analysis.hlo.hlo_collectives import collectives_of
from outlay.analysis.hlo.hlo_memory import peak_bytes
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.parts.part_facts import CachedFacts, PartFacts, PlacedExplanation, SentFacts
from outlay.analysis.work.compiled import compiled_work
from outlay.core.array_leaves import num_bytes
from outlay.core.jax_compat import without_compilation_cache
from outlay.core.paths import join_parts, map_with_paths
from outlay.core.quantities import counted, format_bytes, format_seconds, plural
from outlay.core.traced_flops import TracedWork, traced_work
from outlay.devices.compile_only import target_of
from outlay.devices.mesh_info import MeshInfo, device_id
from outlay.devices.target import Target
from outlay.graph.step_graph import CACHE, StepGraph
from outlay.program.device_group import DeviceGroup, routes
from outlay.program.program import Program

_NAMED = 6
"""The most parts that name a program."""


def explain_placed(program: Program, target: Target | None = None) -> PlacedExplanation:
    """Return what each part of a placed program costs, and what the parts send to one another.

    Args:
        program: the program.
        target: the hardware that times are for; by default that of the mesh.

    Raises:
        ExplainError: the target has another number of devices than the mesh.
    """
    start = time.perf_counter()
    mesh = MeshInfo.of(program.mesh)
    if target is not None:
        check_num_devices(mesh.num_devices, target)
    hardware = target or target_of(program.mesh)
    unknown: dict[str, list[str]] = {}
    parts = _with_shares([_part(program, name, hardware, unknown) for name in program.step.graph.parts])
    sent = sent_by(program, hardware)
    explanation = PlacedExplanation(
        name=", ".join(part.name for part in parts[:_NAMED]) + (" ..." if len(parts) > _NAMED else ""),
        target=hardware,
        mesh=mesh,
        parts=parts,
        sent=sent,
        cached=cached_by(program, sent),
        num_steps_at_once=program.num_steps_at_once,
        findings=(),
        incomplete=tuple(f"{', '.join(names)}: {what}" for what, names in unknown.items()),
        notes=tuple(_notes(mesh, hardware)),
        seconds=0.0,
    )
    # Findings are made of all other facts.
    return replace(explanation, findings=find(explanation), seconds=time.perf_counter() - start)


def _part(program: Program, name: str, target: Target | None, unknown: dict[str, list[str]]) -> PartFacts:
    alone = compile_part(program, name)
    module = parse_hlo(alone.compiled.as_text() or "")
    done = compiled_work(module)
    stats = alone.compiled.memory_analysis()
    for what in (*done.unknown, *alone.traced.unknown):
        unknown.setdefault(what, []).append(name)
    leaves = [leaf for leaf in program.plan.state if leaf.path.partition(".")[0] == name]
    estimate = _alone(schedule_of(module, done), target) if target else None
    return PartFacts(
        name=name,
        devices=next(tuple(map(device_id, group.devices)) for group in program.device_groups if name in group.names),
        num_bytes=sum(leaf.bytes_per_device for leaf in leaves),
        flops=alone.traced.flops,
        bytes_accessed=done.bytes_accessed,
        peak=peak_bytes(module, stats) if stats else None,
        seconds=Range(estimate.seconds_low, estimate.seconds_high) if estimate else None,
        share=0.0,
    )


def _alone(schedule: Schedule, target: Target) -> Estimate:
    """Estimate a part on its own devices, without exchanges."""
    # It is compiled for one device, and would be refused as a program for another number of them.
    return price(replace(schedule, num_devices=target.num_devices), target)


def _with_shares(parts: list[PartFacts]) -> tuple[PartFacts, ...]:
    whole = sum(part.cost * len(part.devices) for part in parts)
    return tuple(replace(part, share=part.cost * len(part.devices) / whole if whole else 0.0) for part in parts)


def _notes(mesh: MeshInfo, target: Target | None) -> Iterator[str]:
    yield (
        "nothing was run: times are estimates from the compiled step of each part; `outlay choose` measures the parts "
        "where the devices are attached"
    )
    if target is not None and target.hardware.measured is None:
        yield f"the speeds of {target} come from a data sheet: compare the parts, and trust the milliseconds less"
    if target is None:
        yield "the hardware is not known, so parts are compared by the bytes that they read and write"
    if mesh.kind == "simulated":
        yield (
            "simulated devices share this machine's cores, so no placement over them is faster than the cores; "
            "on devices of their own, the gain is the ratio of work that is shown"
        )


@dataclass(frozen=True)
class PartStep:
    """A part's step as a program of its own.

    Attributes:
        traced: what was counted in the traced step.
        compiled: the compiled step.
    """

    traced: TracedWork
    compiled: jax.stages.Compiled


def compile_part(program: Program, name: str) -> PartStep:
    """Compile a part's step for the first of its devices, with as many rows of its state as that one holds."""
    graph: StepGraph = program.step.graph
    device = next(group.devices[0] for group in program.device_groups if name in group.names)
    local = {leaf.path: leaf.local_shape for leaf in program.plan.state}
    state = map_with_paths(
        lambda path, leaf: jax.ShapeDtypeStruct(local[path], leaf.dtype), {name: program.state_shapes[name]}
    )[name]
    inputs = {key: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for key, leaf in program.batch_shapes.items()}
    read = jax.eval_shape(lambda cache, inputs: graph.read(name, cache, inputs), program.state_shapes[CACHE], inputs)
    step = graph.parts[name].step
    # A part has its own device, whatever mesh the user has set.
    with jax.set_mesh(None), without_compilation_cache(device), warnings.catch_warnings():
        # A step may return less state than it takes, for example when it ends a count.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        lowered = jax.jit(step, donate_argnums=0).lower(_on(state, device), _on(read, device))
        compiled = lowered.compile()
        return PartStep(traced_work(jax.make_jaxpr(step)(state, read)), compiled)


def _on(tree: Any, device: jax.Device) -> Any:
    where = SingleDeviceSharding(device)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), tree)


_FAR = 0.75
"""The share of the number of devices below which one part is said to bound the best gain."""


def find(explanation: PlacedExplanation) -> tuple[Finding, ...]:
    """Return every finding, in no particular order."""
    return (*_dominant(explanation), *_unbalanced(explanation), *_exchange(explanation), *_idle(explanation))


def _dominant(explanation: PlacedExplanation) -> Iterator[Finding]:
    """Find one part that is so much of the work that devices for the others gain little."""
    if len(explanation.parts) < 2 or explanation.best_gain >= _FAR * explanation.mesh.num_devices:
        return
    part = max(explanation.parts, key=lambda one: one.share)
    yield Finding(
        "dominant-part",
        f"{explanation.bound}, whatever number of devices there are",
        f'split it over several devices: outlay.by_module({{..., "{part.name}": [0, 1]}}), or everything: '
        "outlay.layout.by_rows()",
        int(part.bytes_accessed),
    )


def _unbalanced(explanation: PlacedExplanation) -> Iterator[Finding]:
    """Find several parts that share the busiest device although a much better balance is possible."""
    busiest = max(explanation.work_by_device, key=lambda device: explanation.work_by_device[device])
    there = [part for part in explanation.parts if busiest in part.devices]
    reachable = min(explanation.best_gain, explanation.mesh.num_devices)
    if len(there) < 2 or explanation.gain >= _FAR * reachable:
        return
    yield Finding(
        "unbalanced",
        f"device {busiest} does {explanation.work_by_device[busiest] / explanation.work:.0%} of the work with "
        f"{', '.join(part.name for part in there)}: at most {explanation.gain:.1f}x one device, where up to "
        f"{reachable:.1f}x could be reached",
        "outlay choose RECIPE --target T proposes a balanced placement",
        int(sum(part.bytes_accessed for part in there)),
    )


def _exchange(explanation: PlacedExplanation) -> Iterator[Finding]:
    """Find exchanges that take longer than the computation."""
    spent = explanation.exchange_seconds
    busiest = max(explanation.work_by_device.values())
    if spent is None or spent <= busiest:
        return
    yield Finding(
        "exchange-above-work",
        f"a device waits {format_seconds(spent)} a step for {format_bytes(explanation.bytes_per_step)} in "
        f"{counted(len(explanation.sent), 'transfer')}, and computes {format_seconds(busiest)} at most: the "
        "estimate sees no gain in this placement",
        "one device; larger parts on fewer devices; or connections with a longer delay, so that several steps run "
        "between two exchanges",
        int(explanation.bytes_per_step),
    )


def _idle(explanation: PlacedExplanation) -> Iterator[Finding]:
    idle = [device for device, work in explanation.work_by_device.items() if not work]
    if not idle:
        return
    names = ", ".join(map(str, idle))
    yield Finding(
        "idle-device",
        f"{plural(len(idle), 'device')} {names}: nothing to do",
        f"a mesh of {explanation.mesh.num_devices - len(idle)}, or a part for each: outlay.by_module names positions",
        0,
    )


def sent_by(program: Program, target: Target | None) -> tuple[SentFacts, ...]:
    """Return everything that leaves a device, most bytes first."""
    transfers = [*_between(program, target), *_within(program, target)]
    return tuple(sorted(transfers, key=lambda one: -one.bytes_in_all))


def cached_by(program: Program, sent: tuple[SentFacts, ...]) -> tuple[CachedFacts, ...]:
    """Return the exchange cache by path."""

    def others(path: str) -> tuple[int, ...]:
        copies = [one.target for one in sent if not one.is_within and join_parts((CACHE, one.part, one.port)) == path]
        return tuple(sorted({device for ids in copies for device in ids}))

    return tuple(
        CachedFacts(leaf.path, leaf.shape, leaf.dtype, leaf.bytes_total, leaf.device_ids, others(leaf.path))
        for leaf in program.plan.state
        if leaf.path.startswith(f"{CACHE}.")
    )


def _between(program: Program, target: Target | None) -> Iterator[SentFacts]:
    graph, groups = program.step.graph, program.device_groups
    seen = {(route.origin, route.target, route.part, route.port) for route in routes(groups)}
    for origin, to, part, port in sorted(seen):
        leaf = program.state_shapes[CACHE][part][port]
        readers = [
            name
            for name in groups[to].names
            if any((s.part, s.port) == (part, port) for of in graph.parts[name].reads.values() for s in of)
        ]
        # A dispatch sends the cache once, however many steps it runs.
        size = num_bytes(leaf.shape, leaf.dtype) / program.num_steps_at_once
        pair = [_positions(program, groups[number])[0] for number in (origin, to)]
        yield SentFacts(
            part,
            port,
            _ids(groups[origin]),
            _ids(groups[to]),
            tuple(readers),
            size,
            collective_seconds("collective-permute", size, [pair], target) if target else None,
        )


def _within(program: Program, target: Target | None) -> Iterator[SentFacts]:
    """Yield the rows that the devices of one group exchange, which only its compiled program knows."""
    for group, compiled in zip(program.device_groups, program.compiled_parts, strict=True) if program.rows else ():
        if group.rows is None:
            continue
        positions = _positions(program, group)
        size, seconds = 0.0, 0.0
        for one in collectives_of(parse_hlo(compiled.as_text() or "")):
            size += (payload_bytes(one) - one.operand_bytes) * one.count / program.num_steps_at_once
            if target:
                spent = collective_seconds(one.kind, payload_bytes(one), [positions], target)
                seconds += spent * one.count / program.num_steps_at_once
        names = tuple(group.rows.num)
        yield SentFacts("+".join(names), "rows", _ids(group), _ids(group), names, size, seconds if target else None)


def _ids(group: DeviceGroup) -> tuple[int, ...]:
    return tuple(device_id(device) for device in group.devices)


def _positions(program: Program, group: DeviceGroup) -> list[int]:
    devices = list(program.mesh.devices.flat)
    return [devices.index(device) for device in group.devices]
