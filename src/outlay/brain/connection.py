"""Connections: which port reads which."""

from __future__ import annotations

from dataclasses import dataclass


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
