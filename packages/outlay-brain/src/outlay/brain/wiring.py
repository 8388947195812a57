"""Resolve and check the connections of a whole Brain, and the shapes along them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from outlay.brain.check_modules import brain_problems, checked_ports, is_shape, is_time, module_problems, naming
from outlay.brain.connections import Blueprint, Connection, broken_connections, split_end, unconnected_ports
from outlay.brain.module import BrainError, Port, Shape, split_message
from outlay.errors import Problem
from outlay.graph import Source
from outlay.kit import INPUTS, OneLine, counted, did_you_mean

Reads = Mapping[str, Mapping[str, tuple[Source, ...]]]
"""The sources of each port of each module, in order."""


@dataclass(frozen=True)
class Wiring(OneLine):
    """The resolved connections of a Brain.

    Attributes:
        blueprint: what the Brain is made of.
        reads: the sources of each port of each module, in order.
        input_shapes: the input shape of each port of each module.
        output_ports: the output ports of each module.
        outputs: the Brain's outputs as (module, port).
    """

    blueprint: Blueprint
    reads: Reads
    input_shapes: Mapping[str, Mapping[str, Shape]]
    output_ports: Mapping[str, Mapping[str, Port]]
    outputs: Mapping[str, tuple[str, str]]


def wire(brain: Blueprint) -> Wiring:
    """Resolve a Brain's connections and shapes.

    Later checks skip whatever is already known to be broken, so that a mistake is reported once and hides no others.

    Raises:
        BrainError: something does not fit; the message lists every problem.
    """
    problems = list(brain_problems(brain.modules, brain.inputs, brain.dt, brain.dtype))
    # Most checks of settings divide by dt; with an invalid dt they would only repeat that it is invalid.
    in_settings: dict[str, list[Problem]] = {name: [] for name in brain.modules}
    if is_time(brain.dt):
        in_settings = dict(module_problems(brain.modules, brain.dt))
    broken = broken_connections(brain)
    reads = {name: _reads(brain, name, broken) for name in brain.modules}
    resolved = resolve_shapes(brain, reads, broken=frozenset(in_settings))
    problems += [problem for group in (*in_settings.values(), *broken.values()) for problem in group]
    problems += [*unconnected_ports(brain), *resolved.problems, *origin_problems(brain, resolved.ports)]
    problems += [*port_problems(brain, reads, resolved, in_settings), *output_problems(brain, resolved.ports)]
    if problems:
        raise BrainError(f"this Brain cannot be built: {counted(len(problems), 'problem')}", problems)
    outputs = {name: split_end(where) for name, where in brain.outputs.items()}
    return Wiring(brain, reads, resolved.arriving, resolved.ports, outputs)


def _reads(brain: Blueprint, name: str, broken: Collection[Connection]) -> dict[str, tuple[Source, ...]]:
    """Return the sources of each port of a module, without broken connections."""
    sound = [connection for connection in brain.connections if connection not in broken]

    def sources(port: str) -> tuple[Source, ...]:
        there = [connection for connection in sound if connection.target == f"{name}:{port}"]
        return tuple(Source(*split_end(c.origin), c.latency(brain.dt) if is_time(brain.dt) else 1) for c in there)

    return {port: sources(port) for port in brain.modules[name].inputs()}


@dataclass(frozen=True)
class Shapes:
    """The shapes that are known so far.

    Attributes:
        ports: the output ports of each module.
        arriving: the known input shapes, by module and port.
        problems: modules that reject their input shapes, and cycles in which no module determines a shape.
    """

    ports: Mapping[str, Mapping[str, Port]]
    arriving: Mapping[str, Mapping[str, Shape]]
    problems: list[Problem]


def resolve_shapes(brain: Blueprint, reads: Reads, *, broken: frozenset[str]) -> Shapes:
    """Ask modules for their output ports until all are known, or no more can be.

    Args:
        brain: the Brain.
        reads: the sources of its modules.
        broken: modules to skip, because their settings are invalid.
    """
    ports: dict[str, Mapping[str, Port]] = {}
    # Each round can settle one more module; the extra round asks all of them again with the final shapes.
    for _ in range(len(brain.modules) + 1):
        known = {name: _arriving(brain, reads[name], ports) for name in brain.modules}
        written = {name: _ask(brain, name, known[name]) for name in brain.modules if name not in broken}
        ports = {name: what for name, what in written.items() if isinstance(what, Mapping)}
    refused = {name: what for name, what in written.items() if isinstance(what, Problem)}
    lacking = {name: what for name, what in written.items() if isinstance(what, str)}
    shapeless = [
        Problem("port", f"{name}:{port}", "its module writes it without a shape", "a Port with a shape")
        for name, by_port in ports.items()
        for port, what in by_port.items()
        if what.shape is None
    ]
    return Shapes(ports, known, [*refused.values(), *_cycles(reads, lacking), *shapeless])


def port_of(inputs: Mapping[str, Shape], source: Source, ports: Mapping[str, Mapping[str, Port]]) -> Port | None:
    """Return the port of a source; None if it is unknown."""
    if source.part == INPUTS:
        shape = inputs[source.port]
        return Port("values", shape) if is_shape(shape) else None
    return ports.get(source.part, {}).get(source.port)


def _ask(brain: Blueprint, name: str, shapes: Mapping[str, Shape]) -> Mapping[str, Port] | str | Problem:
    """Return a module's output ports, or the input port whose shape it needs first, or why it rejects its inputs."""
    try:
        with naming(name, brain.modules[name], "outputs"):
            return checked_ports(brain.modules[name].outputs(shapes))
    except KeyError as lacking:
        port = lacking.args[0]
        # A KeyError of the module itself is its own mistake; only one for an input says what is needed.
        if port in shapes or port not in brain.modules[name].inputs():
            raise
        return port
    except BrainError as refusal:
        what, fix = split_message(refusal)
        return Problem("shape", name, what, fix or "sources of another shape")


def _arriving(
    brain: Blueprint, by_port: Mapping[str, tuple[Source, ...]], ports: Mapping[str, Mapping[str, Port]]
) -> dict[str, Shape]:
    """Return the joint shape of the sources of each port, for ports all of whose sources have known shapes."""
    arriving = {}
    for port, sources in by_port.items():
        written = [port_of(brain.inputs, source, ports) for source in sources]
        shapes = [what.shape for what in written if what is not None and what.shape is not None]
        # Several sources are flattened and joined; a single one keeps its shape.
        if shapes and len(shapes) == len(sources):
            arriving[port] = shapes[0] if len(shapes) == 1 else (sum(math.prod(shape) for shape in shapes),)
    return arriving


def _cycles(reads: Reads, lacking: Mapping[str, str]) -> list[Problem]:
    """Return one problem for each cycle of modules that wait for each other's shapes."""
    cycles: dict[frozenset[str], Problem] = {}
    for start in lacking:
        walk = [start]
        while (before := _waits_for(reads, lacking, walk[-1])) and before not in walk:
            walk.append(before)
        if before:
            cycle = walk[walk.index(before) :]
            first = cycle[0]
            cycles.setdefault(frozenset(cycle), _cycle_problem(cycle, f"{first}:{lacking[first]}"))
    return list(cycles.values())


def _waits_for(reads: Reads, lacking: Mapping[str, str], name: str) -> str | None:
    """Return a module whose shape this one waits for and that waits itself; None if there is none."""
    return next((source.part for source in reads[name][lacking[name]] if source.part in lacking), None)


def _cycle_problem(cycle: list[str], where: str) -> Problem:
    around = " -> ".join(reversed([*cycle, cycle[0]]))
    return Problem(
        "missing shape",
        where,
        f"its shape follows from itself, around a cycle in which no module has a shape of its own: {around}",
        "put a module with a shape of its own into the cycle, such as a neuron with its units",
    )


def port_problems(brain: Blueprint, reads: Reads, shapes: Shapes, broken: Collection[str]) -> Iterator[Problem]:
    """Yield a problem for each source of another kind, unit or shape than the port that reads it.

    Args:
        brain: the Brain.
        reads: the sources of its modules.
        shapes: the known shapes.
        broken: modules with invalid settings, which may determine their ports.
    """
    for name, by_port in reads.items():
        for port, sources in by_port.items():
            where, expected = f"{name}:{port}", brain.modules[name].inputs()[port]
            arrived = shapes.arriving[name].get(port)
            for source in sources:
                if name not in broken:
                    yield from _source_problems(brain, source, where, expected, shapes)
            if name not in broken and expected.shape is not None and arrived is not None and arrived != expected.shape:
                ends = " + ".join(f"{source} {port_of(brain.inputs, source, shapes.ports)}" for source in sources)
                what = f"it reads {expected}, and what arrives is {arrived}: {ends}"
                yield Problem("shape", where, what, f"sources that make {expected.shape}")


def origin_problems(brain: Blueprint, ports: Mapping[str, Mapping[str, Port]]) -> Iterator[Problem]:
    """Yield a problem for each connection from a port that its module does not write."""
    for connection in dict.fromkeys(brain.connections):
        module, _, port = connection.origin.partition(":")
        if module in ports and port and port not in ports[module]:
            what = f"{module} writes no port {port!r}"
            yield Problem("connection", str(connection), what, did_you_mean(port, ports[module]))


def output_problems(brain: Blueprint, ports: Mapping[str, Mapping[str, Port]]) -> Iterator[Problem]:
    """Yield a problem for each output of the Brain that no module writes."""
    for name, where in brain.outputs.items():
        module, port = split_end(where)
        if module not in brain.modules:
            what, fix = f"there is no module {module!r}", did_you_mean(module, brain.modules)
        elif module in ports and port not in ports[module]:
            what, fix = f"{module} writes no port {port!r}", did_you_mean(port, ports[module])
        else:
            continue
        yield Problem("output", name, f"{where}: {what}", fix)


def _source_problems(brain: Blueprint, source: Source, where: str, expected: Port, shapes: Shapes) -> Iterator[Problem]:
    origin, both = port_of(brain.inputs, source, shapes.ports), f"{source} -> {where}"
    if origin is None:
        return
    if origin.kind != expected.kind and expected.kind != "graded" and source.part != INPUTS:
        what = f"{source} writes {origin}, and {where} reads {expected}"
        fix = f"a source of {expected.kind}, or a module between them that makes {expected.kind} of {origin.kind}"
        yield Problem("connection", both, what, fix)
    elif origin.unit and expected.unit and origin.unit != expected.unit:
        what = f"{source} is in {origin.unit}, and {where} in {expected.unit}"
        yield Problem("connection", both, what, "a port of the same unit")
