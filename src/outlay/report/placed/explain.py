"""The explanation of a placed program: its parts are compiled one by one, and nothing is run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from outlay.core.errors import ExplainError
from outlay.execute.placed.program import PlacedProgram
from outlay.meshes.compile_only import target_of
from outlay.meshes.device_id import device_id
from outlay.meshes.info import MeshInfo
from outlay.meshes.target import Target
from outlay.report.estimate.facts import Estimate
from outlay.report.estimate.price import price
from outlay.report.estimate.schedule import Schedule, schedule_of
from outlay.report.estimate.speeds import Range
from outlay.report.hlo.memory import peak_bytes
from outlay.report.hlo.parse import parse_hlo
from outlay.report.placed.exchange import cached_by, sent_by
from outlay.report.placed.explanation import PlacedExplanation
from outlay.report.placed.facts import PartFacts
from outlay.report.placed.findings import find
from outlay.report.placed.part_step import compile_part
from outlay.report.work.compiled import compiled_work

_NAMED = 6
"""Parts that name a program."""


def explain_placed(program: PlacedProgram, target: Target | None = None) -> PlacedExplanation:
    """What each part of a placed program costs, and what they send one another.

    Args:
        program: the program.
        target: the hardware that times are of; that of the mesh if None.

    Raises:
        ExplainError: the target has another number of devices than the mesh.
    """
    start = time.perf_counter()
    mesh = MeshInfo.of(program.mesh)
    if target is not None and target.num_devices != mesh.num_devices:
        raise ExplainError(
            f"the program is for {mesh.num_devices} device(s), but {target} has {target.num_devices}\n"
            f"  cure: a target of {mesh.num_devices} devices, or a mesh for that target: "
            f"outlay.mesh(..., target={str(target)!r})"
        )
    hardware = target or target_of(program.mesh)
    unknown: dict[str, list[str]] = {}
    parts = _with_shares([_part(program, name, hardware, unknown) for name in program.step.graph.parts])
    sent = sent_by(program, hardware)
    found = PlacedExplanation(
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
    return replace(found, findings=find(found), seconds=time.perf_counter() - start)


def _part(program: PlacedProgram, name: str, target: Target | None, unknown: dict[str, list[str]]) -> PartFacts:
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
        devices=next(tuple(map(device_id, place.devices)) for place in program.places if name in place.names),
        num_bytes=sum(leaf.bytes_per_device for leaf in leaves),
        flops=alone.traced.flops,
        bytes_accessed=done.bytes_accessed,
        peak=peak_bytes(module, stats) if stats else None,
        seconds=Range(estimate.seconds_low, estimate.seconds_high) if estimate else None,
        share=0.0,
    )


def _alone(schedule: Schedule, target: Target) -> Estimate:
    """A part on its own devices, which exchange nothing inside of it."""
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
        yield f"the speeds of {target} are a data sheet's, so compare the parts, and trust the milliseconds less"
    if target is None:
        yield "the hardware is not known, so parts are compared by the bytes that they read and write"
    if mesh.kind == "simulated":
        yield (
            "simulated devices share this machine's cores: no placement over them is faster than the cores are, and "
            "what it would gain on devices of their own is the ratio of work that is shown"
        )
