"""What the findings are found in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax

from outlay.analysis.attribution.leaves import Leaf
from outlay.analysis.attribution.program_facts import CollectiveFacts, MemoryFacts, WorkFacts
from outlay.analysis.hlo.hlo_module import HloModule
from outlay.devices.info import MeshInfo
from outlay.program.program import Program


@dataclass(frozen=True)
class Evidence:
    """A compiled program and all that was found of it.

    Attributes:
        module: the program.
        collectives: what it moves.
        leaves: its parameters.
        mesh: the mesh it is partitioned over, if it is known.
        memory: what a device holds, if it is known.
        work: what a device computes.
        program: what it was made from, if that is an `outlay.Program`.
        compiled: the compiled program, if it is at hand.
    """

    module: HloModule
    collectives: Sequence[CollectiveFacts]
    leaves: Sequence[Leaf]
    mesh: MeshInfo | None
    memory: MemoryFacts | None
    work: WorkFacts
    program: Program | None
    compiled: jax.stages.Compiled | None

    @property
    def by_name(self) -> Mapping[str, CollectiveFacts]:
        """The collectives by the names of their instructions."""
        return {one.name: one for one in self.collectives}
