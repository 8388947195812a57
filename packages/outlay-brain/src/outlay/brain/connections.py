"""Connections between ports, with delays; what a Brain is made of; and the checks of a single connection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from outlay.brain.check_modules import is_time
from outlay.brain.module import Module, Shape
from outlay.errors import Problem
from outlay.kit import INPUTS, OneLine, did_you_mean

LONGEST = 2**24
"""The longest delay in steps."""
LIKE_A_TYPO = 0.75
"""Similarity (0 to 1) from which the name of a port is taken for a typo of another."""
WHOLE = 1e-6
"""The tolerated distance of a delay from a whole number of steps: only the rounding of numbers such as 0.1."""


@dataclass(frozen=True)
class Connection:
    """A connection from a source to a port.

    Attributes:
        origin: `MODULE:PORT`, or `inputs:NAME` for an input of the Brain.
        target: `MODULE:PORT`.
        delay: the delay in ms, a multiple of the Brain's dt; None for one step.
    """

    origin: str
    target: str
    delay: float | None = None

    def __str__(self) -> str:
        return f"{self.origin} -> {self.target}"

    def latency(self, dt: float) -> int:
        """Return the delay in steps of dt ms."""
        # Rounded: 0.3 / 0.1 is 2.9999999999999996.
        return 1 if self.delay is None else round(self.delay / dt)


@dataclass(frozen=True)
class Blueprint(OneLine):
    """The fields of a `Brain` before it is wired."""

    modules: Mapping[str, Module]
    connections: Sequence[Connection]
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, str]
    dt: float
    dtype: str


def split_end(end: str) -> tuple[str, str]:
    """Split one end of a connection into its module and its port.

    >>> split_end("A_ex:out_spikes")
    ('A_ex', 'out_spikes')
    """
    module, _, port = end.partition(":")
    return module, port


def broken_connections(brain: Blueprint) -> dict[Connection, list[Problem]]:
    """Return the connections with a missing end, a duplicate or an impossible delay, with their problems."""
    twice = {connection for connection, times in Counter(brain.connections).items() if times > 1}
    broken = {}
    for connection in brain.connections:
        what = [*_origin_problems(brain, connection), *_target_problems(brain, connection)]
        what += _delay_problems(connection, brain.dt) if is_time(brain.dt) else []
        if connection in twice:
            what.append(("it is listed twice", "list it once; how strong it is, the kernel says"))
        if what:
            broken[connection] = [Problem("connection", str(connection), wrong, fix) for wrong, fix in what]
    return broken


def unconnected_ports(brain: Blueprint) -> Iterator[Problem]:
    """Yield a problem for each unconnected input port."""
    connected = {connection.target for connection in brain.connections}
    for name, module in brain.modules.items():
        for port, what in module.inputs().items():
            if f"{name}:{port}" not in connected:
                yield Problem(
                    "unconnected port",
                    f"{name}:{port}",
                    f"nothing is connected to it, and every input port of {name} must be connected",
                    f'a connection from something that writes {what.kind} to "{name}:{port}"',
                )


def _origin_problems(brain: Blueprint, connection: Connection) -> Iterator[tuple[str, str]]:
    if ":" not in connection.origin:
        yield f"{connection.origin!r} names no port", f"MODULE:PORT, or {INPUTS}:NAME"
        return
    module, port = split_end(connection.origin)
    if module == INPUTS and port not in brain.inputs:
        yield f"the Brain has no input {port!r}", did_you_mean(port, brain.inputs)
    elif module != INPUTS and module not in brain.modules:
        yield f"there is no module {module!r}", did_you_mean(module, [*brain.modules, INPUTS])


def _target_problems(brain: Blueprint, connection: Connection) -> Iterator[tuple[str, str]]:
    if ":" not in connection.target:
        yield f"{connection.target!r} names no port", "MODULE:PORT"
        return
    module, port = split_end(connection.target)
    if module not in brain.modules:
        yield f"there is no module {module!r}", did_you_mean(module, brain.modules)
    elif port not in brain.modules[module].inputs():
        ports = brain.modules[module].inputs()
        fix = did_you_mean(port, ports)
        if len(ports) == 1 and SequenceMatcher(None, port, next(iter(ports))).ratio() < LIKE_A_TYPO:
            fix = f"{next(iter(ports))}, its only port: several sources of a port are joined in the order of the list"
        yield f"{module} reads no port {port!r}", fix


def _delay_problems(connection: Connection, dt: float) -> Iterator[tuple[str, str]]:
    delay = connection.delay
    if delay is None:
        return
    if not is_time(delay):
        yield f"its delay is {delay!r} ms", f"a positive multiple of dt, such as {dt:g} ms"
        return
    if split_end(connection.origin)[0] == INPUTS:
        yield "it has a delay, and inputs are read in their own step", "leave the delay out, and delay what is fed in"
        return
    steps = f"its delay of {delay:g} ms is {delay / dt:g} steps of dt = {dt:g} ms"
    if delay / dt > LONGEST:
        yield steps, f"at most {LONGEST} steps"
    # 0.3 / 0.1 is 2.9999999999999996, which means three steps.
    elif abs(delay / dt - connection.latency(dt)) > WHOLE or connection.latency(dt) < 1:
        near = max(1, connection.latency(dt)) * dt
        yield (
            steps,
            f"a whole number of steps, at least 1, such as {near:g} ms (delay={near:g}; in a file, after {near:g} ms)",
        )
