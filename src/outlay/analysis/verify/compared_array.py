"""What was found of one array, as plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gradient", "output", "state"]
Verdict = Literal["same", "different", "unknown"]


@dataclass(frozen=True)
class LeafCheck:
    """One array that a step computed, compared with the reference.

    Attributes:
        step: which step, from 1.
        kind: `gradient`, `output` or `state`.
        path: the leaf's path; gradients below `grads`, outputs below `outputs`; empty for a state that is one array.
        dtype: of the leaf.
        max_abs: the largest difference of an entry between the program and the reference, each in its own dtypes.
        max_rel: that over the largest entry; for state, over the largest entry of the step's update.
        ratio: the norm of the leaf over the norm it should have, for state the norms of the updates, in float64 where
            both were replayed so; None where there is nothing to divide by.
        allowed: the largest difference that is rounding.
        reason: where that comes from, in words.
        replayed: the largest difference between the two in float64, over the largest entry or update; None where they
            were not replayed.
        moved: whether the step, or a further one, changed the array, or computed anything but zeros for a gradient or
            an output.
        reads_batch: whether it depends on the batch.
        fault: what is wrong, in words; empty if nothing is.
        doubt: why nothing can be said of it, in words; empty if something can.
        is_settled_by_others: whether that is of these numbers alone, so that the same array of another step can tell.
        note: what is odd about it and no fault, in words.
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
    replayed: float | None = None
    moved: bool = True
    reads_batch: bool = False
    fault: str = ""
    doubt: str = ""
    is_settled_by_others: bool = False
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """`same`, `different` or `unknown`."""
        if self.fault:
            return "different"
        return "unknown" if self.doubt else "same"

    @property
    def ok(self) -> bool:
        """Whether it is the same."""
        return self.verdict == "same"

    @property
    def name(self) -> str:
        """The path, or words for an array that has none."""
        return self.path or f"the whole {self.kind}"

    @property
    def trains(self) -> bool:
        """Whether it is a gradient, or state, that rounds and depends on the batch."""
        return self.reads_batch and self.kind != "output" and "float" in self.dtype

    def also(self, fault: str) -> LeafCheck:
        """With one more fault, which comes first; empty adds none."""
        return dataclasses.replace(self, fault="; ".join(filter(None, (fault, self.fault))))

    @property
    def nearness(self) -> float:
        """The largest difference over the largest that is allowed; where none is allowed, the difference."""
        return self.max_abs / self.allowed if self.allowed else self.max_abs

    @property
    def in_words(self) -> str:
        """The leaf, when, and what is wrong or not known."""
        what = self.fault or self.doubt or "the same"
        return (
            f"{self.kind} {self.path}, step {self.step}: {what}"
            if self.path
            else f"{self.name}, step {self.step}: {what}"
        )
