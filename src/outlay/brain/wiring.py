"""From modules and connections to sources and shapes, or to a list of all that does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlay.brain.connection import Connection
from outlay.brain.port import Port, Shape
from outlay.core.errors import BrainError, Problem
from outlay.core.step_graph import CACHE, INPUTS, Source
from outlay.core.suggest import did_you_mean

if TYPE_CHECKING:
    from outlay.brain.brain import Brain

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Wiring:
    """What reads what, resolved.

    Attributes:
        reads: for each module and port its sources, in order.
        input_shapes: for each module and port the shape that arrives.
        output_ports: for each module what it writes.
        outputs: the Brain's outputs as (module, port).
    """

    reads: Mapping[str, Mapping[str, tuple[Source, ...]]]
    input_shapes: Mapping[str, Mapping[str, Shape]]
    output_ports: Mapping[str, Mapping[str, Port]]
    outputs: Mapping[str, tuple[str, str]]


def wire(brain: Brain) -> Wiring:
    """Resolve a Brain's connections and shapes.

    Raises:
        BrainError: something does not fit; every offender is listed.
    """
    _raise_if([*_setting_problems(brain), *_connection_problems(brain)])
    reads = {name: _reads(brain, name) for name in brain.modules}
    output_ports, problems = _resolve(brain, reads)
    _raise_if(problems)
    shapes = {
        name: {port: _arriving(brain, s, output_ports) for port, s in ports.items()} for name, ports in reads.items()
    }
    _raise_if([*_port_problems(brain, reads, shapes, output_ports), *_output_problems(brain, output_ports)])
    return Wiring(reads, shapes, output_ports, {name: _split(where) for name, where in brain.outputs.items()})


def _raise_if(problems: list[Problem]) -> None:
    if problems:
        raise BrainError(f"this Brain cannot be built: {len(problems)} problem(s)", problems)


def _setting_problems(brain: Brain) -> Iterator[Problem]:
    if not (isinstance(brain.dt, int | float) and math.isfinite(brain.dt) and brain.dt > 0):
        yield Problem("setting", "dt", f"the time of a step is {brain.dt!r} ms", "a positive number, such as dt = 1.0")
        return
    if brain.dtype not in DTYPES:
        yield Problem("setting", "dtype", f"{brain.dtype!r} is none of them", f"one of {', '.join(DTYPES)}")
    if not brain.modules:
        yield Problem("setting", "modules", "there is no module", "at least one")
    for name in (*brain.modules, *brain.inputs):
        if name in (CACHE, INPUTS) or not name.isidentifier():
            yield Problem(
                "name",
                name,
                "it stands in paths such as MODULE.soma.potential, which it would break",
                f"letters, digits and underscores, and neither {CACHE!r} nor {INPUTS!r}",
            )
    for name, module in brain.modules.items():
        for sentence in module.problems(dt=brain.dt):
            what, _, cure = sentence.partition("\n")
            yield Problem("setting", name, what, cure or "another value")


def _connection_problems(brain: Brain) -> Iterator[Problem]:
    seen = set()
    for connection in brain.connections:
        where = str(connection)
        if (connection.origin, connection.target) in seen:
            yield Problem("connection", where, "it is there twice", "name it once; weights belong to the kernel")
        seen.add((connection.origin, connection.target))
        for end, names in ((connection.origin, [*brain.modules, INPUTS]), (connection.target, list(brain.modules))):
            module = _split(end)[0]
            if module not in names:
                yield Problem("connection", where, f"there is no module {module!r}", did_you_mean(module, names))
        part, port = _split(connection.origin)
        if part == INPUTS and port not in brain.inputs:
            yield Problem("connection", where, f"the Brain has no input {port!r}", did_you_mean(port, brain.inputs))
        module, port = _split(connection.target)
        if module in brain.modules and port not in brain.modules[module].inputs():
            ports = brain.modules[module].inputs()
            yield Problem("connection", where, f"{module} reads no port {port!r}", did_you_mean(port, ports))
        yield from _delay_problems(connection, brain.dt)
    connected = {connection.target for connection in brain.connections}
    for name, module in brain.modules.items():
        for port in module.inputs():
            if f"{name}:{port}" not in connected:
                yield Problem(
                    "port",
                    f"{name}:{port}",
                    "nothing is connected to it, and its module cannot do without",
                    f'a connection to "{name}:{port}"',
                )


def _delay_problems(connection: Connection, dt: float) -> Iterator[Problem]:
    if connection.delay is None:
        return
    steps = connection.delay / dt
    if _split(connection.origin)[0] == INPUTS:
        yield Problem("connection", str(connection), "inputs are read in their own step", "leave its delay out")
    elif steps < 1 or abs(steps - round(steps)) > 1e-6:
        near = max(1, round(steps)) * dt
        yield Problem(
            "connection",
            str(connection),
            f"its delay of {connection.delay:g} ms is {steps:g} steps of {dt:g} ms",
            f"a whole number of steps, at least 1, such as {near:g} ms",
        )


def _split(end: str) -> tuple[str, str]:
    part, _, port = end.partition(":")
    return part, port


def _reads(brain: Brain, name: str) -> dict[str, tuple[Source, ...]]:
    def sources(port: str) -> tuple[Source, ...]:
        there = [c for c in brain.connections if c.target == f"{name}:{port}"]
        return tuple(Source(*_split(c.origin), 1 if c.delay is None else round(c.delay / brain.dt)) for c in there)

    return {port: sources(port) for port in brain.modules[name].inputs()}


def _resolve(brain: Brain, reads: Mapping[str, Mapping[str, tuple[Source, ...]]]):
    """What every module writes, found in as many rounds as modules need to know each other's shapes."""
    ports: dict[str, Mapping[str, Port]] = {}
    waiting = dict.fromkeys(brain.modules, "")
    for _ in brain.modules:
        for name in list(waiting):
            known = {port: _arriving(brain, sources, ports) for port, sources in reads[name].items()}
            try:
                ports[name] = brain.modules[name].outputs(
                    {port: shape for port, shape in known.items() if shape is not None}
                )
                del waiting[name]
            except KeyError as error:
                waiting[name] = str(error.args[0])
    problems = [
        Problem(
            "shape",
            f"{name}:{port}",
            "its shape follows from a cycle of modules none of which says its own",
            "a module with units of its own, such as a neuron, in the cycle",
        )
        for name, port in waiting.items()
        if not _lacks(reads[name], ports, brain)
    ]
    return ports, problems or [
        Problem(
            "connection",
            f"{source} -> {name}:{port}",
            f"{source.part} writes no port {source.port!r}",
            did_you_mean(source.port, ports[source.part]),
        )
        for name, by_port in reads.items()
        for port, sources in by_port.items()
        for source in sources
        if source.part in ports and source.port not in ports[source.part]
    ]


def _lacks(by_port: Mapping[str, tuple[Source, ...]], ports: Mapping[str, Mapping[str, Port]], brain: Brain) -> bool:
    """Whether a module waits for a port that does not exist, which is reported as that."""
    sources = [source for sources in by_port.values() for source in sources]
    return any(source.part in ports and source.port not in ports[source.part] for source in sources)


def _port_of(brain: Brain, source: Source, ports: Mapping[str, Mapping[str, Port]]) -> Port | None:
    if source.part == INPUTS:
        return Port("values", tuple(brain.inputs[source.port]))
    return ports.get(source.part, {}).get(source.port)


def _arriving(brain: Brain, sources: tuple[Source, ...], ports: Mapping[str, Mapping[str, Port]]) -> Shape | None:
    """The shape of what a port's sources are together; None where one of them is not known."""
    shapes = [port.shape if port else None for port in (_port_of(brain, source, ports) for source in sources)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    return known[0] if len(known) == 1 else (sum(math.prod(shape) for shape in known),)


def _port_problems(brain, reads, shapes, output_ports) -> Iterator[Problem]:
    for name, by_port in reads.items():
        for port, sources in by_port.items():
            want, got = brain.modules[name].inputs()[port], shapes[name][port]
            for source in sources:
                origin = _port_of(brain, source, output_ports)
                assert origin is not None  # `_resolve` has found them all
                where = f"{source} -> {name}:{port}"
                if origin.kind != want.kind and source.part != INPUTS:
                    yield Problem(
                        "connection",
                        where,
                        f"{source} writes {origin} and {name}:{port} reads {want}",
                        f"connect {want.kind}, or a module between them that makes {want.kind} of {origin.kind}",
                    )
                elif origin.unit and want.unit and origin.unit != want.unit:
                    yield Problem(
                        "connection",
                        where,
                        f"{source} is in {origin.unit} and {name}:{port} in {want.unit}",
                        "a port of the same unit",
                    )
            if want.shape is not None and got != want.shape:
                ends = " + ".join(f"{s} {_port_of(brain, s, output_ports).shape}" for s in sources)
                yield Problem(
                    "shape",
                    f"{name}:{port}",
                    f"it reads {want.shape}, and what arrives is {got}: {ends}",
                    "sources that are together of that shape",
                )


def _output_problems(brain: Brain, output_ports: Mapping[str, Mapping[str, Port]]) -> Iterator[Problem]:
    for name, where in brain.outputs.items():
        module, port = _split(where)
        if module not in output_ports:
            yield Problem("output", name, f"{where}: there is no module {module!r}", did_you_mean(module, output_ports))
        elif port not in output_ports[module]:
            yield Problem(
                "output", name, f"{where}: {module} writes no port {port!r}", did_you_mean(port, output_ports[module])
            )
