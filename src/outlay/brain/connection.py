"""Connections: which port reads which."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST = 2**24
"""The most steps of a delay."""


@dataclass(frozen=True)
class Connection:
    """One source of one port.

    Attributes:
        origin: `MODULE:PORT`, or `inputs:NAME` for an input of the Brain.
        target: `MODULE:PORT`.
        delay: how long after it was produced it is read, in ms, a multiple of the Brain's dt; one step if None.
    """

    origin: str
    target: str
    delay: float | None = None

    def __str__(self) -> str:
        return f"{self.origin} -> {self.target}"

    def latency(self, dt: float) -> int:
        """How many steps of dt ms after it was produced it is read."""
        return 1 if self.delay is None else round(self.delay / dt)


def split_end(end: str) -> tuple[str, str]:
    """The module and the port of one end of a connection.

    >>> split_end("A_ex:out_spikes")
    ('A_ex', 'out_spikes')
    """
    module, _, port = end.partition(":")
    return module, port
