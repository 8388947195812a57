"""The shape of everything that flows, found from the modules that say their own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlay.brain.brain_error import BrainError
from outlay.brain.check_modules import checked_ports, naming
from outlay.brain.check_settings import is_shape
from outlay.brain.port import Port, Shape
from outlay.core.error_types import Problem
from outlay.graph.step_graph import INPUTS, Source

if TYPE_CHECKING:
    from outlay.brain.brain import Brain

Reads = Mapping[str, Mapping[str, tuple[Source, ...]]]
"""For each module and port its sources, in order."""


@dataclass(frozen=True)
class Shapes:
    """What is known of what flows.

    Attributes:
        ports: for each module what it writes.
        arriving: for each module and port the shape that arrives, where it is known.
        problems: modules that refuse what arrives, and cycles in which nobody says a shape.
    """

    ports: Mapping[str, Mapping[str, Port]]
    arriving: Mapping[str, Mapping[str, Shape]]
    problems: list[Problem]


def resolve_shapes(brain: Brain, reads: Reads, *, broken: frozenset[str]) -> Shapes:
    """Ask modules what they write until all have said it, or none can say more.

    Args:
        brain: the Brain.
        reads: what its modules read.
        broken: modules not to ask: their settings are wrong.
    """
    said: dict[str, Mapping[str, Port]] = {}
    # Each round, a module more can know its shapes; what the last one is told no longer changes.
    for _ in range(len(brain.modules) + 1):
        known = {name: _arriving(brain, reads[name], said) for name in brain.modules}
        written = {name: _ask(brain, name, known[name]) for name in brain.modules if name not in broken}
        said = {name: what for name, what in written.items() if isinstance(what, Mapping)}
    refused = {name: what for name, what in written.items() if isinstance(what, Problem)}
    lacking = {name: what for name, what in written.items() if isinstance(what, str)}
    shapeless = [
        Problem("port", f"{name}:{port}", "its module writes it without saying a shape", "a Port with a shape")
        for name, by_port in said.items()
        for port, what in by_port.items()
        if what.shape is None
    ]
    return Shapes(said, known, [*refused.values(), *_cycles(reads, lacking), *shapeless])


def port_of(brain: Brain, source: Source, ports: Mapping[str, Mapping[str, Port]]) -> Port | None:
    """What a source writes; None where that is not known."""
    if source.part == INPUTS:
        shape = brain.inputs[source.port]
        return Port("values", shape) if is_shape(shape) else None
    return ports.get(source.part, {}).get(source.port)


def _ask(brain: Brain, name: str, shapes: Mapping[str, Shape]) -> Mapping[str, Port] | str | Problem:
    """What a module writes; or the port whose shape it has to know first; or why it refuses what arrives."""
    try:
        with naming(name, brain.modules[name], "outputs"):
            return checked_ports(name, brain.modules[name], brain.modules[name].outputs(shapes))
    except KeyError as lacking:
        port = lacking.args[0]
        if port in shapes or port not in brain.modules[name].inputs():
            raise
        return port
    except BrainError as refusal:
        what, _, fix = str(refusal).partition("\n")
        return Problem("shape", name, what, fix.strip().removeprefix("fix: ") or "sources of another shape")


def _arriving(
    brain: Brain, by_port: Mapping[str, tuple[Source, ...]], ports: Mapping[str, Mapping[str, Port]]
) -> dict[str, Shape]:
    """The shape of what the sources of each port are together, for ports all of whose sources are known."""
    found = {}
    for port, sources in by_port.items():
        written = [port_of(brain, source, ports) for source in sources]
        shapes = [what.shape for what in written if what is not None and what.shape is not None]
        if shapes and len(shapes) == len(sources):
            found[port] = shapes[0] if len(shapes) == 1 else (sum(math.prod(shape) for shape in shapes),)
    return found


def _cycles(reads: Reads, lacking: Mapping[str, str]) -> list[Problem]:
    """One problem for each cycle of modules that all wait for each other's shapes."""
    found: dict[frozenset[str], Problem] = {}
    for start in lacking:
        walk = [start]
        while (before := _waits_for(reads, lacking, walk[-1])) and before not in walk:
            walk.append(before)
        if before:
            cycle = walk[walk.index(before) :]
            first = cycle[0]
            found.setdefault(frozenset(cycle), _cycle_problem(cycle, f"{first}:{lacking[first]}"))
    return list(found.values())


def _waits_for(reads: Reads, lacking: Mapping[str, str], name: str) -> str | None:
    """A module that waits itself, and whose shape this one waits for."""
    return next((source.part for source in reads[name][lacking[name]] if source.part in lacking), None)


def _cycle_problem(cycle: list[str], where: str) -> Problem:
    around = " -> ".join(reversed([*cycle, cycle[0]]))
    return Problem(
        "missing shape",
        where,
        f"what arrives has the shape of what leaves, around a cycle in which no module says its own: {around}",
        "in the cycle, a module that has a shape of its own, such as a neuron with its units",
    )
