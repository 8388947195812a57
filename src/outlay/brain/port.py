"""Ports: what goes into a module and what comes out, with kind, shape and unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = tuple[int, ...]
Kind = Literal["spikes", "values"]


@dataclass(frozen=True)
class Port:
    """A named place where a module reads or writes one array a step.

    Attributes:
        kind: `spikes` (int8: +1, -1 from an inhibitory neuron, or 0) or `values` (numbers of the Brain's dtype).
        shape: its shape; None where an input takes any.
        unit: of the values, such as `pA`.
    """

    kind: Kind
    shape: Shape | None = None
    unit: str = ""

    def __str__(self) -> str:
        shape = "any shape" if self.shape is None else str(self.shape)
        return f"{self.kind} {shape}" + (f" in {self.unit}" if self.unit else "")


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
