"""The facts of a proof, for each array and for the whole, which print themselves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from outlay.analysis.verify.answer import Answer, Verdict
from outlay.core.quantities import counted, listed
from outlay.render.page import Column, Line, Notes, Page, Section, Style, Table
from outlay.render.report import Report, fields_as_json

Kind = Literal["gradient", "output", "state"]

_ORDER: tuple[Verdict, ...] = ("different", "unknown", "same")
_MAX_REASONS = 8


@dataclass(frozen=True)
class LeafCheck:
    """One array that a step computed, compared with the reference.

    Attributes:
        step: which step, from 1; 0 for the state that init makes.
        kind: `gradient`, `output` or `state`.
        path: the leaf's path; gradients below `grads`, outputs below `outputs`; empty for a state that is one array.
        dtype: the dtype of the leaf.
        max_abs: the largest difference of an entry between the program and the reference, each in its own dtypes.
        max_rel: that over the largest entry; for state, over the largest entry of the step's update.
        ratio: the norm of the leaf over the norm that it should have (for state, the norms of the updates), in float64
            if both were replayed; None if there is nothing to divide by.
        allowed: the largest difference that is rounding.
        reason: the reason for that bound, in words.
        replayed: the largest difference between the two in float64, over the largest entry or update; None if they were
            not replayed.
        moved: whether the step, or a further one, changed the array, or computed anything but zeros for a gradient or
            an output.
        reads_batch: whether it depends on the batch.
        fault: what is wrong, in words; empty if nothing is.
        doubt: why nothing is known about it, in words; empty if something is.
        is_settled_by_others: whether that concerns these numbers only, so that the same array of another step can tell.
        note: something odd that is not a fault, in words.
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
        """The path, or a description of an array without one."""
        return self.path or f"the whole {self.kind}"

    @property
    def trains(self) -> bool:
        """Whether it is a gradient or state that rounds and depends on the batch."""
        return self.reads_batch and self.kind != "output" and "float" in self.dtype

    def also(self, fault: str) -> LeafCheck:
        """Return the check with one more fault, which comes first; an empty one adds nothing."""
        return dataclasses.replace(self, fault="; ".join(filter(None, (fault, self.fault)))) if fault else self

    @property
    def nearness(self) -> float:
        """The largest difference over the largest that is allowed; if none is allowed, the difference."""
        return self.max_abs / self.allowed if self.allowed else self.max_abs

    @property
    def in_words(self) -> str:
        """The leaf, the step, and what is wrong or unknown."""
        what = self.fault or self.doubt or "the same"
        return (
            f"{self.kind} {self.path}, step {self.step}: {what}"
            if self.path
            else f"{self.name}, step {self.step}: {what}"
        )


@dataclass(frozen=True)
class Verification(Answer):
    """Whether a program computes what it should, array by array; returned by `outlay.verify`.

    `str()` gives text, a notebook shows a table.

    Attributes:
        program: what was checked: its mode and mesh.
        against: what it was compared with.
        num_steps: how many steps, each from the same state in both.
        batches: where the batches came from.
        checks: every array of every step, in the order of the steps and, in a step, gradients, outputs, new state.
        causes: mistakes that the numbers confirm, in words, if something differs.
        doubts: why nothing is known, and what to change, in words; about the whole proof, besides its arrays' own
            doubts.
        replayed: whether both were replayed in float64 too, or why not, in words.
        num_further: how many further steps were compared, if both were replayed in float64 alone; only their failed
            checks are kept.
        reference: what the program was compared with, in words; empty for another mode.
        limits: for a program as compiled for absent hardware, what of it was judged and what was not, in words.
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
    reference: str = ""
    limits: tuple[str, ...] = ()

    @property
    def wrong(self) -> tuple[LeafCheck, ...]:
        """The checks that failed, in order."""
        return tuple(check for check in self.checks if check.verdict == "different")

    @property
    def verdict(self) -> Verdict:
        """`same`, `different`, or `unknown` if a fault could hide."""
        if self.wrong:
            return "different"
        return "unknown" if self.reasons else "same"

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the answer is unknown, in words; each with what to change."""
        arrays: dict[str, LeafCheck] = {}
        for check in self.checks:
            if check.verdict == "unknown":
                arrays.setdefault(check.doubt if not check.path else f"{check.kind} {check.path}", check)
        return (*self.doubts, *(check.in_words for check in arrays.values()))

    @property
    def leaves(self) -> tuple[LeafCheck, ...]:
        """One check for each array: different ones first, then unknown ones.

        Of an array's checks it is the first that failed, or else the one that came nearest to failing.
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
        """The answer in one sentence."""
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
        precise = " in float64 alone" if any(check.replayed is not None for check in self.checks) else ""
        further = f", and {self.num_further} more{precise}" if self.num_further else ""
        notes = [
            f"batches {self.batches}",
            f"{steps} compared{further}; later steps may behave differently (steps=N compares more)",
        ]
        if not self.limits and not any(check.kind == "gradient" for check in self.checks):
            notes.append("gradients were not compared: only steps from outlay.train_step say what they are")
        trained: dict[str, bool] = {}
        for check in self.checks:
            if check.trains:
                trained[check.path] = trained.get(check.path, False) or check.moved
        still = [path for path, moved in trained.items() if not moved]
        # A doubt says so already, and what to do about it.
        if still and not self.doubts:
            notes.append(f"{counted(len(still), 'array')} read the batch and never changed: {listed(still, 4)}")
        notes += [words for words in (self.reference, self.replayed, *self.limits) if words]
        return tuple(notes)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            **fields_as_json(self, "doubts", "replayed", "num_further", "reference", "limits"),
            "verdict": self.verdict,
            "ok": self.ok,
            "first_wrong": self.wrong[0].in_words if self.wrong else None,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "checks": [{**_finite(fields_as_json(check)), "verdict": check.verdict} for check in self.checks],
        }

    _text_width = 160

    def _page(self) -> Page:
        """Show the first arrays of many; the page can unfold the others."""
        others = self.leaves[_MAX_ROWS:]
        num_wrong = sum(leaf.verdict == "different" for leaf in others)
        rest = f"and {counted(len(others), 'more array')}, {num_wrong or 'none'} of them different"
        return self._page_of(self.leaves, "arrays", _MAX_ROWS, rest)

    def _page_of(self, leaves: Sequence[LeafCheck], title: str, limit: int, rest: str) -> Page:
        columns = [
            (Column("array", "code"), lambda leaf: leaf.name),
            (Column("step", "number"), lambda leaf: str(leaf.step)),
            (Column("max abs", "number"), lambda leaf: f"{leaf.max_abs:.1e}"),
            (Column("max rel", "number"), lambda leaf: f"{leaf.max_rel:.1e}"),
            (Column("allowed", "number"), lambda leaf: f"{leaf.allowed:.1e}"),
            (Column("ratio", "number"), lambda leaf: "" if leaf.ratio is None else f"{leaf.ratio:.4g}"),
            (Column("in float64", "number"), lambda leaf: "" if leaf.replayed is None else f"{leaf.replayed:.1e}"),
            (Column("", "words", is_key=True), _outcome),
        ]
        table = Table.of(
            leaves,
            columns,
            style=lambda leaf: "" if leaf.ok else _STYLES[leaf.verdict],
            hint=lambda leaf: leaf.reason,
            limit=limit,
            rest=rest,
        )
        reasons = list(dict.fromkeys(leaf.reason for leaf in leaves))[:_MAX_TOLERANCES]
        answer, *causes = self.headline.splitlines()
        style = _STYLES[self.verdict]
        return Page(
            answer,
            [
                *(Line(cause, style) for cause in causes),
                *([Section(title, [table])] if leaves else []),
                *(Line(f"allowed for {reason}", medium="text") for reason in reasons),
                Notes(self.notes),
            ],
            headline_style=style,
            footer="Hover over a row to see what the tolerance allows for.",
        )


def brief(proof: Verification) -> Report:
    """Return what a command prints: of arrays that are all the same, the three nearest to a difference."""
    return _Brief(proof) if proof.ok else proof


@dataclass(frozen=True)
class _Brief(Report):
    """A proof in which all is the same, in a few lines."""

    verification: Verification

    _text_width = 160

    def to_dict(self) -> dict[str, Any]:
        return self.verification.to_dict()

    def _page(self) -> Page:
        nearest = sorted(self.verification.leaves, key=lambda leaf: -leaf.nearness)[:_NUM_NEAREST]
        return self.verification._page_of(nearest, "the arrays nearest to a difference", _NUM_NEAREST, "")


def _finite(facts: dict[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinity, which JSON does not have."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in facts.items()
    }


_MAX_ROWS = 24
_NUM_NEAREST = 3
_MAX_TOLERANCES = 4
_STYLES: dict[Verdict, Style] = {"same": "good", "different": "bad", "unknown": "warning"}


def _outcome(leaf: LeafCheck) -> str:
    unknown = f"unknown: {leaf.doubt}" if leaf.doubt else ""
    same = f"the same ({leaf.note})" if leaf.note else "the same"
    return leaf.fault or unknown or same
