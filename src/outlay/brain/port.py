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
