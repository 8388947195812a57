"""The facts of a proof, about each array and the whole, which print themselves."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from outlay.core.error_types import VerifyError
from outlay.core.quantities import counted
from outlay.render.page import Column, Line, Notes, Page, Row, Section, Style, Table
from outlay.render.report import Report

Kind = Literal["gradient", "output", "state"]
Verdict = Literal["same", "different", "unknown"]

_ORDER: tuple[Verdict, ...] = ("different", "unknown", "same")
_MAX_REASONS = 8


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


@dataclass(frozen=True)
class Verification(Report):
    """Whether a program computes what it should, array by array; made by `outlay.verify`.

    `str()` gives text, a notebook shows a table.

    Attributes:
        program: what was checked: its mode and mesh.
        against: what it was compared with.
        num_steps: how many steps, each from the same state in both.
        batches: where the batches came from.
        checks: every array of every step, in the order of the steps and, in a step, gradients, outputs, new state.
        causes: mistakes that the numbers confirm, in words, where something differs.
        doubts: why nothing can be said, and what to change, in words; of the whole proof, besides those of its arrays.
        replayed: whether both were replayed in float64 too, or why not, in words.
        num_further: how many further steps were compared, in float64 alone; of their checks only failed ones are kept.
    """

    program: str
    against: str
    num_steps: int
    batches: str
    checks: tuple[LeafCheck, ...]
    causes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    replayed: str = ""
    num_further: int = 0

    @property
    def wrong(self) -> tuple[LeafCheck, ...]:
        """The checks that failed, the first one first."""
        return tuple(check for check in self.checks if check.verdict == "different")

    @property
    def verdict(self) -> Verdict:
        """`same`, `different`, or `unknown` where a fault could hide."""
        if self.wrong:
            return "different"
        return "unknown" if self.reasons else "same"

    @property
    def ok(self) -> bool:
        """Whether every array is the same up to rounding, and each was able to show a fault."""
        return self.verdict == "same"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the answer is unknown, in words; each with what to change."""
        arrays: dict[str, LeafCheck] = {}
        for check in self.checks:
            if check.verdict == "unknown":
                arrays.setdefault(check.doubt if not check.path else f"{check.kind} {check.path}", check)
        return (*self.doubts, *(check.in_words for check in arrays.values()))

    @property
    def leaves(self) -> tuple[LeafCheck, ...]:
        """One check for each array: those that differ first, then unknown ones.

        Of the checks of an array it is the first to fail, or else the one that came nearest to it.
        """
        worst: dict[tuple[str, str], LeafCheck] = {}
        for check in self.checks:
            best = worst.setdefault((check.kind, check.path), check)
            worse = _ORDER.index(check.verdict) < _ORDER.index(best.verdict)
            if worse or (check.verdict == best.verdict == "same" and check.nearness > best.nearness):
                worst[check.kind, check.path] = check
        return tuple(
            sorted(worst.values(), key=lambda check: (_ORDER.index(check.verdict), not check.ok and check.step))
        )

    @property
    def headline(self) -> str:
        """The answer in a sentence."""
        leaves = self.leaves
        did = f"{self.program}, against {self.against}, {counted(self.num_steps, 'step')}"
        if self.verdict == "same":
            return f"the same: all {counted(len(leaves), 'array')} of {did}"
        if self.verdict == "unknown":
            reasons = "".join(f"\n  {reason}" for reason in self.reasons[:_MAX_REASONS])
            left = len(self.reasons) - _MAX_REASONS
            more = f"\n  and {left} more reasons" if left > 0 else ""
            return (
                f"unknown: nothing differs in {counted(len(leaves), 'array')} of {did}, but a fault could "
                f"hide:{reasons}{more}"
            )
        num_wrong = sum(leaf.verdict == "different" for leaf in leaves)
        causes = "".join(f"\ncause: {cause}" for cause in self.causes)
        return (
            f"different: {num_wrong} of {counted(len(leaves), 'array')} of {did}\nfirst: "
            f"{self.wrong[0].in_words}{causes}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What limits the proof, in words."""
        steps = counted(self.num_steps, "step was", "steps were")
        further = f", and {self.num_further} more in float64 alone" if self.num_further else ""
        notes = [
            f"batches {self.batches}",
            f"{steps} compared{further}; of what a later one does otherwise nothing is known (steps=N)",
        ]
        if not any(check.kind == "gradient" for check in self.checks):
            notes.append("gradients are not among the arrays: only steps from outlay.train_step say what they are")
        trained: dict[str, bool] = {}
        for check in self.checks:
            if check.trains:
                trained[check.path] = trained.get(check.path, False) or check.moved
        still = [path for path, moved in trained.items() if not moved]
        if still and not self.doubts:
            shown = ", ".join(still[:4]) + (f" and {len(still) - 4} more" if len(still) > 4 else "")
            notes.append(f"{counted(len(still), 'array')} read the batch and never changed: {shown}")
        if self.replayed:
            notes.append(self.replayed)
        return tuple(notes)

    def raise_if_different(self, *, allow_unknown: bool = False) -> None:
        """Do nothing if all is the same.

        Args:
            allow_unknown: also do nothing where the answer is unknown.

        Raises:
            VerifyError: something differs, with the first wrong leaf and all others; or the answer is unknown, with
                the reasons.
        """
        if self.verdict == "different" or (self.verdict == "unknown" and not allow_unknown):
            raise VerifyError(str(self))

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "verdict": self.verdict,
            "ok": self.ok,
            "program": self.program,
            "against": self.against,
            "num_steps": self.num_steps,
            "batches": self.batches,
            "first_wrong": self.wrong[0].in_words if self.wrong else None,
            "causes": list(self.causes),
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "checks": [{**_finite(dataclasses.asdict(check)), "verdict": check.verdict} for check in self.checks],
        }

    _text_width = 160

    def _page(self) -> Page:
        """The first arrays of many; the page can unfold the others."""
        columns = [Column("array", "code"), *(Column(name, "number") for name in _NUMBERS), Column("", "words")]
        rows = [
            Row(_cells(leaf), _STYLES[leaf.verdict] if leaf.verdict != "same" else "", leaf.reason)
            for leaf in self.leaves
        ]
        others = self.leaves[_MAX_ROWS:]
        num_wrong = sum(leaf.verdict == "different" for leaf in others)
        rest = f"and {counted(len(others), 'more array')}, {num_wrong or 'none'} of them different"
        reasons = list(dict.fromkeys(leaf.reason for leaf in self.leaves))[:_MAX_TOLERANCES]
        answer, *causes = self.headline.splitlines()
        style = _STYLES[self.verdict]
        return Page(
            answer,
            [
                *(Line(cause, style) for cause in causes),
                Section("arrays", [Table(columns, rows, limit=_MAX_ROWS, rest=rest)]),
                *(Line(f"allowed for {reason}", medium="text") for reason in reasons),
                Notes(self.notes),
            ],
            headline_style=style,
            footer="Where the pointer rests on a row, it says what the tolerance allows for.",
        )


def _finite(facts: dict[str, Any]) -> dict[str, Any]:
    """JSON knows neither NaN nor infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in facts.items()
    }


_NUMBERS = ("step", "max abs", "max rel", "allowed", "ratio", "in float64")
_MAX_ROWS = 24
_MAX_TOLERANCES = 4
_STYLES: dict[Verdict, Style] = {"same": "good", "different": "bad", "unknown": "warning"}


def _cells(leaf: LeafCheck) -> tuple[str, ...]:
    ratio = "" if leaf.ratio is None else f"{leaf.ratio:.4g}"
    replayed = "" if leaf.replayed is None else f"{leaf.replayed:.1e}"
    numbers = (f"{leaf.max_abs:.1e}", f"{leaf.max_rel:.1e}", f"{leaf.allowed:.1e}", ratio, replayed)
    unknown = f"unknown: {leaf.doubt}" if leaf.doubt else ""
    same = f"the same ({leaf.note})" if leaf.note else "the same"
    return (leaf.name, str(leaf.step), *numbers, leaf.fault or unknown or same)
