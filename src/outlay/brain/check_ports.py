"""What is wrong between ports that are connected: kinds, units and shapes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from outlay.brain.connection import split_end
from outlay.brain.port import Port
from outlay.brain.shapes import Reads, Shapes, port_of
from outlay.core.errors import Problem
from outlay.core.step_graph import INPUTS, Source
from outlay.core.suggest import did_you_mean

if TYPE_CHECKING:
    from outlay.brain.brain import Brain


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
            what, cure = f"there is no module {module!r}", did_you_mean(module, brain.modules)
        elif module in ports and port not in ports[module]:
            what, cure = f"{module} writes no port {port!r}", did_you_mean(port, ports[module])
        else:
            continue
        yield Problem("output", name, f"{where}: {what}", cure)


def _source_problems(brain: Brain, source: Source, where: str, want: Port, shapes: Shapes) -> Iterator[Problem]:
    origin, both = port_of(brain, source, shapes.ports), f"{source} -> {where}"
    if origin is None:
        return
    if origin.kind != want.kind and source.part != INPUTS:
        what = f"{source} writes {origin}, and {where} reads {want}"
        cure = f"a source of {want.kind}, or a module between them that makes {want.kind} of {origin.kind}"
        yield Problem("connection", both, what, cure)
    elif origin.unit and want.unit and origin.unit != want.unit:
        what = f"{source} is in {origin.unit}, and {where} in {want.unit}"
        yield Problem("connection", both, what, "a port of the same unit")
