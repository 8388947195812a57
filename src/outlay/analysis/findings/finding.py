"""A finding: something that costs more than it must, and what to do about it; and the evidence for findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec

from outlay.analysis.attribution.compiler_output import ReturnedState
from outlay.analysis.attribution.leaves import Leaf
from outlay.analysis.attribution.program_facts import CollectiveFacts, MemoryFacts, ValueFacts, WorkFacts
from outlay.analysis.cost.lanes import Stretch
from outlay.analysis.hlo.hlo_module import Computation, HloModule, Instruction, SourceLine
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target
from outlay.layout.placement import spec_text
from outlay.program.compiler_options import CompilerOptions
from outlay.program.program import Program
from outlay.render.report import fields_as_json

SEVERE = ("out-of-memory", "tight-memory", "not-in-fp8")
"""Kinds that come before all that only cost."""

RATIO = 1.5
"""The factor over its share from which a device repeats work; recomputing a whole forward pass (remat) gives 1.33."""


@dataclass(frozen=True)
class Finding:
    """Something that costs, and what to do about it.

    Attributes:
        kind: a short fixed name, such as `resharding`, `whole-parameter-gather`, `out-of-memory`.
        text: what, where and how much, in words.
        fix: the edit to make.
        cost_bytes: bytes moved or stored for it, by a device in a step, for all equal ones.
        source: the user's line, if known.
        num_alike: how many of the program's instructions have the same finding.
        seconds: what it takes of a step, for all equal ones; None if it takes no time of its own, or without a target.
        spec: the spec that the value of the line should have, if that is the fix and it is known.
    """

    kind: str
    text: str
    fix: str
    cost_bytes: int
    source: SourceLine | None = None
    num_alike: int = 1
    seconds: float | None = None
    spec: PartitionSpec | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; a spec is written as code."""
        return {**fields_as_json(self, "spec"), "spec": None if self.spec is None else spec_text(self.spec)}

    def is_minor(self, step_seconds: float | None) -> bool:
        """Return whether it takes less than a hundredth of a step."""
        return self.seconds is not None and step_seconds is not None and self.seconds * 100 < step_seconds


@dataclass(frozen=True)
class Evidence:
    """A compiled program and the facts about it.

    Attributes:
        module: the program.
        collectives: its collectives.
        leaves: its parameters.
        mesh: the mesh that it is partitioned over, if known.
        memory: what a device holds, if known.
        work: what a device computes.
        program: the `outlay.Program` that it was made from, if any.
        state: what comes back of its first argument, if that is a state, and if known.
        computing: the seconds that a device computes in a step; None without a target.
        target: the hardware, if known.
        stretches: the step, timed on the target.
        options: what the compiler was told, if known.
    """

    module: HloModule
    collectives: Sequence[CollectiveFacts]
    leaves: Sequence[Leaf]
    mesh: MeshInfo | None
    memory: MemoryFacts | None
    work: WorkFacts
    program: Program | None
    state: ReturnedState | None
    computing: float | None = None
    target: Target | None = None
    stretches: Sequence[Stretch] = ()
    options: CompilerOptions | None = None

    @property
    def kind(self) -> str:
        """The kind of the hardware, such as `gpu`; empty if it is not known."""
        return self.target.hardware.kind if self.target is not None else ""

    @property
    def repetition(self) -> float:
        """How many times its share of the traced step a device computes; 0 if that is not known, or there is one."""
        # Loops are multiplied out in both, so that what is left is repetition.
        flops, is_shared = self.work.flops, self.mesh is not None and self.mesh.num_devices > 1
        return self.work.flops_compiled / flops if flops and is_shared else 0.0

    def exchanges(self) -> Iterator[tuple[Computation, Instruction, CollectiveFacts]]:
        """Yield each collective with its computation and its instruction in the program."""
        places = self.module.places
        for one in self.collectives:
            if one.name in places:
                yield *places[one.name], one


def first_source(facts: Iterable[CollectiveFacts | ValueFacts]) -> SourceLine | None:
    """Return the line of the first that has one."""
    return next((one.source for one in facts if one.source), None)


def seconds_of(collectives: Iterable[CollectiveFacts]) -> float | None:
    """Return the seconds of collectives in a step; None without a target."""
    times = [None if one.seconds is None else one.seconds * one.count for one in collectives]
    return None if None in times else sum(one for one in times if one is not None)
