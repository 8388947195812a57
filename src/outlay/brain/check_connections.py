"""What is wrong with connections before any shape is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from outlay.brain.check_settings import is_time
from outlay.brain.port import LONGEST, Connection, Port, split_end
from outlay.brain.shapes import Reads, Shapes, port_of
from outlay.core.error_types import Problem
from outlay.core.suggest import did_you_mean
from outlay.graph.step_graph import INPUTS, Source

if TYPE_CHECKING:
    from outlay.brain.brain import Brain


WHOLE = 1e-6
"""How far from a whole number of steps a delay may be: the rounding of numbers such as 0.1, no more."""


def broken_connections(brain: Brain) -> dict[Connection, list[Problem]]:
    """The connections that lead nowhere, are there twice or have no possible delay, each with its problems."""
    twice = {connection for connection, times in Counter(brain.connections).items() if times > 1}
    found = {}
    for connection in brain.connections:
        what = [*_origin_problems(brain, connection), *_target_problems(brain, connection)]
        what += _delay_problems(connection, brain.dt) if is_time(brain.dt) else []
        if connection in twice:
            what.append(("it is there twice", "name it once; how much it counts is for the kernel to say"))
        if what:
            found[connection] = [Problem("connection", str(connection), wrong, fix) for wrong, fix in what]
    return found


def unconnected_ports(brain: Brain) -> Iterator[Problem]:
    """The ports that nothing is connected to."""
    connected = {connection.target for connection in brain.connections}
    for name, module in brain.modules.items():
        for port, what in module.inputs().items():
            if f"{name}:{port}" not in connected:
                yield Problem(
                    "unconnected port",
                    f"{name}:{port}",
                    f"nothing is connected to it, and {name} cannot do without it",
                    f'a connection from something that writes {what.kind} to "{name}:{port}"',
                )


def _origin_problems(brain: Brain, connection: Connection) -> Iterator[tuple[str, str]]:
    if ":" not in connection.origin:
        yield f"{connection.origin!r} names no port", f"MODULE:PORT, or {INPUTS}:NAME"
        return
    module, port = split_end(connection.origin)
    if module == INPUTS and port not in brain.inputs:
        yield f"the Brain has no input {port!r}", did_you_mean(port, brain.inputs)
    elif module != INPUTS and module not in brain.modules:
        yield f"there is no module {module!r}", did_you_mean(module, [*brain.modules, INPUTS])


def _target_problems(brain: Brain, connection: Connection) -> Iterator[tuple[str, str]]:
    if ":" not in connection.target:
        yield f"{connection.target!r} names no port", "MODULE:PORT"
        return
    module, port = split_end(connection.target)
    if module not in brain.modules:
        yield f"there is no module {module!r}", did_you_mean(module, brain.modules)
    elif port not in brain.modules[module].inputs():
        yield f"{module} reads no port {port!r}", did_you_mean(port, brain.modules[module].inputs())


def _delay_problems(connection: Connection, dt: float) -> Iterator[tuple[str, str]]:
    if connection.delay is None:
        return
    if not is_time(connection.delay):
        yield f"its delay is {connection.delay!r} ms", f"a positive multiple of dt, such as {dt:g} ms"
    elif split_end(connection.origin)[0] == INPUTS:
        yield "it has a delay, and inputs are read in their own step", "leave the delay out, and delay what is fed in"
    elif connection.delay / dt > LONGEST:
        what = f"its delay of {connection.delay:g} ms is {connection.delay / dt:g} steps of dt = {dt:g} ms"
        yield what, f"at most {LONGEST} steps"
    elif abs(connection.delay / dt - connection.latency(dt)) > WHOLE or connection.latency(dt) < 1:
        near = max(1, connection.latency(dt)) * dt
        yield (
            f"its delay of {connection.delay:g} ms is {connection.delay / dt:g} steps of dt = {dt:g} ms",
            f"a whole number of steps, at least 1, such as {near:g} ms",
        )


def port_problems(brain: Brain, reads: Reads, shapes: Shapes, broken: Collection[str]) -> Iterator[Problem]:
    """Sources of another kind or unit than what reads them, and wrong shapes.

    Args:
        brain: the Brain.
        reads: what its modules read.
        shapes: what is known of what flows.
        broken: modules with wrong settings, from which what they read may follow.
    """
    for name, by_port in reads.items():
        for port, sources in by_port.items():
            where, want, got = f"{name}:{port}", brain.modules[name].inputs()[port], shapes.arriving[name].get(port)
            for source in sources:
                if name not in broken:
                    yield from _source_problems(brain, source, where, want, shapes)
            if name not in broken and want.shape is not None and got is not None and got != want.shape:
                ends = " + ".join(f"{source} {port_of(brain, source, shapes.ports)}" for source in sources)
                what = f"it reads {want}, and what arrives is {got}: {ends}"
                yield Problem("shape", where, what, f"sources that make {want.shape}")


def origin_problems(brain: Brain, ports: Mapping[str, Mapping[str, Port]]) -> Iterator[Problem]:
    """Connections from a port that their module does not write, whatever else is wrong with them."""
    for connection in dict.fromkeys(brain.connections):
        module, _, port = connection.origin.partition(":")
        if module in ports and port and port not in ports[module]:
            what = f"{module} writes no port {port!r}"
            yield Problem("connection", str(connection), what, did_you_mean(port, ports[module]))


def output_problems(brain: Brain, ports: Mapping[str, Mapping[str, Port]]) -> Iterator[Problem]:
    """Outputs of the Brain that no module writes."""
    for name, where in brain.outputs.items():
        module, port = split_end(where)
        if module not in brain.modules:
            what, fix = f"there is no module {module!r}", did_you_mean(module, brain.modules)
        elif module in ports and port not in ports[module]:
            what, fix = f"{module} writes no port {port!r}", did_you_mean(port, ports[module])
        else:
            continue
        yield Problem("output", name, f"{where}: {what}", fix)


def _source_problems(brain: Brain, source: Source, where: str, want: Port, shapes: Shapes) -> Iterator[Problem]:
    origin, both = port_of(brain, source, shapes.ports), f"{source} -> {where}"
    if origin is None:
        return
    if origin.kind != want.kind and source.part != INPUTS:
        what = f"{source} writes {origin}, and {where} reads {want}"
        fix = f"a source of {want.kind}, or a module between them that makes {want.kind} of {origin.kind}"
        yield Problem("connection", both, what, fix)
    elif origin.unit and want.unit and origin.unit != want.unit:
        what = f"{source} is in {origin.unit}, and {where} in {want.unit}"
        yield Problem("connection", both, what, "a port of the same unit")
