"""From modules and connections to sources and shapes, or to a list of all that does not fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlay.brain.check_connections import broken_connections, unconnected_ports
from outlay.brain.check_ports import origin_problems, output_problems, port_problems
from outlay.brain.check_settings import brain_problems, is_time, module_problems
from outlay.brain.connection import Connection, split_end
from outlay.brain.port import Port, Shape
from outlay.brain.shapes import Reads, resolve_shapes
from outlay.core.errors import BrainError
from outlay.core.step_graph import Source

if TYPE_CHECKING:
    from outlay.brain.brain import Brain


@dataclass(frozen=True)
class Wiring:
    """What reads what, resolved.

    Attributes:
        reads: for each module and port its sources, in order.
        input_shapes: for each module and port the shape that arrives.
        output_ports: for each module what it writes.
        outputs: the Brain's outputs as (module, port).
    """

    reads: Reads
    input_shapes: Mapping[str, Mapping[str, Shape]]
    output_ports: Mapping[str, Mapping[str, Port]]
    outputs: Mapping[str, tuple[str, str]]


def wire(brain: Brain) -> Wiring:
    """Resolve a Brain's connections and shapes.

    What is broken is left out of what is checked after it, so that one mistake is told once and hides no other.

    Raises:
        BrainError: something does not fit; every offender is listed.
    """
    problems = list(brain_problems(brain))
    in_settings = dict(module_problems(brain)) if is_time(brain.dt) else {name: [] for name in brain.modules}
    broken = broken_connections(brain)
    reads = {name: _reads(brain, name, broken) for name in brain.modules}
    resolved = resolve_shapes(brain, reads, broken=frozenset(in_settings))
    problems += [problem for found in (*in_settings.values(), *broken.values()) for problem in found]
    problems += [*unconnected_ports(brain), *resolved.problems, *origin_problems(brain, resolved.ports)]
    problems += [*port_problems(brain, reads, resolved, in_settings), *output_problems(brain, resolved.ports)]
    if problems:
        raise BrainError(f"this Brain cannot be built: {len(problems)} problem(s)", problems)
    outputs = {name: split_end(where) for name, where in brain.outputs.items()}
    return Wiring(reads, resolved.arriving, resolved.ports, outputs)


def _reads(brain: Brain, name: str, broken: Collection[Connection]) -> dict[str, tuple[Source, ...]]:
    """The sources of each port of a module, without the connections that are broken."""
    sound = [connection for connection in brain.connections if connection not in broken]

    def sources(port: str) -> tuple[Source, ...]:
        there = [connection for connection in sound if connection.target == f"{name}:{port}"]
        return tuple(Source(*split_end(c.origin), c.latency(brain.dt) if is_time(brain.dt) else 1) for c in there)

    return {port: sources(port) for port in brain.modules[name].inputs()}
