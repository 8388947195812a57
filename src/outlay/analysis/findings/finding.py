"""A finding: something that costs more than it must, and what to do about it; and the evidence for findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outlay.analysis.attribution.compiler_output import ReturnedState
from outlay.analysis.attribution.leaves import Leaf
from outlay.analysis.attribution.program_facts import CollectiveFacts, MemoryFacts, ValueFacts, WorkFacts
from outlay.analysis.hlo.hlo_module import HloModule, SourceLine
from outlay.devices.mesh_info import MeshInfo
from outlay.program.program import Program

SEVERE = ("out-of-memory", "tight-memory")
"""Kinds that come before all that only cost."""


@dataclass(frozen=True)
class Finding:
    """Something that costs, and what to do about it.

    Attributes:
        kind: a short fixed name, such as `resharding`, `whole-parameter-gather`, `out-of-memory`.
        text: what, where and how much, in words.
        fix: the edit to make.
        cost_bytes: bytes moved or stored for it, by a device in a step, for all equal ones; findings are ranked by it.
        source: the user's line, if known.
        num_alike: how many of the program's instructions have the same finding.
    """

    kind: str
    text: str
    fix: str
    cost_bytes: int
    source: SourceLine | None = None
    num_alike: int = 1


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
    """

    module: HloModule
    collectives: Sequence[CollectiveFacts]
    leaves: Sequence[Leaf]
    mesh: MeshInfo | None
    memory: MemoryFacts | None
    work: WorkFacts
    program: Program | None
    state: ReturnedState | None


def first_source(facts: Iterable[CollectiveFacts | ValueFacts]) -> SourceLine | None:
    """Return the line of the first that has one."""
    return next((one.source for one in facts if one.source), None)
