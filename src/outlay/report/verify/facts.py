"""What was found of one array, as plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gradient", "output", "state"]


@dataclass(frozen=True)
class LeafCheck:
    """One array that a step computed, compared with the reference.

    Attributes:
        step: which step, from 1.
        kind: `gradient`, `output` or `state`.
        path: the leaf's path; gradients below `grads`, outputs below `outputs`.
        dtype: of the leaf.
        max_abs: the largest difference of an entry.
        max_rel: that over the largest entry; for state, over the largest entry of the step's update.
        ratio: the norm of the leaf over the norm it should have, for state the norms of the updates; None where there
            is nothing to divide by.
        allowed: the largest difference that is rounding.
        reason: where that comes from, in words.
        amplified: whether rounding alone moves the leaf so far that its being the same proves little.
        fault: what is wrong, in words; empty if nothing is.
    """

    step: int
    kind: Kind
    path: str
    dtype: str
    max_abs: float
    max_rel: float
    ratio: float | None
    allowed: float
    reason: str
    amplified: bool = False
    fault: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is the same."""
        return not self.fault

    def also(self, fault: str) -> LeafCheck:
        """With one more fault, which comes first; empty adds none."""
        return dataclasses.replace(self, fault="; ".join(filter(None, (fault, self.fault))))

    @property
    def nearness(self) -> float:
        """The largest difference over the largest that is allowed; where none is allowed, the difference."""
        return self.max_abs / self.allowed if self.allowed else self.max_abs

    @property
    def in_words(self) -> str:
        """The leaf, when, and what is wrong."""
        return f"{self.kind} {self.path}, step {self.step}: {self.fault or 'the same'}"
