"""The facts of a proof of a program by a smaller one of the same structure, which print themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlay.analysis.verify.answer import Answer, Verdict
from outlay.analysis.verify.as_compiled.structure import StructureComparison
from outlay.analysis.verify.static.static_verification import StaticVerification
from outlay.analysis.verify.verification import Verification
from outlay.core.one_line import OneLine
from outlay.core.quantities import counted, listed
from outlay.render.page import Column, Line, Notes, Page, Section, Style, Table
from outlay.render.report import fields_as_json

_MAX_ROWS = 12
_STYLES: dict[Verdict, Style] = {"same": "good", "different": "bad", "unknown": "warning"}


@dataclass(frozen=True)
class Shrunk(OneLine):
    """An array of a program, and the same of the smaller one.

    Attributes:
        path: its path.
        full: its shape.
        small: its shape in the smaller program.
    """

    path: str
    full: tuple[int, ...]
    small: tuple[int, ...]


@dataclass(frozen=True)
class SampledVerification(Answer):
    """Whether a program that is too big to compute here is right, as far as a smaller one tells.

    Three things are told: whether the compiler made the same of both, up to sizes; what the smaller one computes; and
    whether the exchanges of the big one fit its layout at full size.

    Attributes:
        program: the program: its mode and mesh.
        shrunk: the arrays whose shapes differ.
        structure: what of the two compiled programs agrees.
        small: the proof of the smaller program, by numbers.
        static: the proof of the program at full size, without numbers.
        made_smaller: what became of mesh and state, in words.
        otherwise_split: leaves that the plan of the smaller program splits otherwise, in words.
    """

    program: str
    shrunk: tuple[Shrunk, ...]
    structure: StructureComparison
    small: Verification
    static: StaticVerification
    made_smaller: str
    otherwise_split: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """`different` if either proof says so, `same` if both find nothing and the structures agree."""
        if "different" in (self.small.verdict, self.static.verdict):
            return "different"
        return "unknown" if self.reasons else "same"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the answer is not `same`, in words."""
        return (
            *(f"the structures differ: {words}" for words in self.structure.differences),
            *(f"the plans differ: {words}" for words in self.otherwise_split),
            *(f"the smaller program: {words}" for words in self.small.reasons),
        )

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        which = "the same" if self.structure.agrees else "another"
        by = f"{self.program}, judged by a smaller one of {which} structure"
        if self.verdict == "different":
            where = "the smaller program" if self.small.verdict == "different" else "the program at full size"
            return f"different: {where} of {by}\n{(self.small if self.small.wrong else self.static).headline}"
        if self.verdict == "unknown":
            reasons = "".join(f"\n  {reason}" for reason in self.reasons)
            return f"unknown: nothing was seen to differ in {by}, but a fault could hide:{reasons}"
        num = len(self.small.leaves)
        return f"the same: all {counted(num, 'array')} of {by}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What was compared, and what limits the answer, in words."""
        return (
            f"made smaller: {self.made_smaller}",
            f"structure: {self.structure.in_words}",
            *self.structure.remarks,
            f"at full size, without numbers: {self.static.headline}",
            "what depends on sizes alone was not judged: the kernels that libraries choose, and memory",
            *self.small.notes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "program": self.program,
            "verdict": self.verdict,
            "ok": self.ok,
            "reasons": list(self.reasons),
            "made_smaller": self.made_smaller,
            "shrunk": [fields_as_json(one) for one in self.shrunk],
            "structure": {**fields_as_json(self.structure), "agrees": self.structure.agrees},
            "small": self.small.to_dict(),
            "static": self.static.to_dict(),
            "notes": list(self.notes),
        }

    _text_width = 160

    def _page(self) -> Page:
        columns = [
            (Column("array", "code"), lambda one: one.path),
            (Column("full", "code"), lambda one: str(one.full)),
            (Column("small", "code"), lambda one: str(one.small)),
        ]
        answer, *more = self.headline.splitlines()
        style = _STYLES[self.verdict]
        rest = listed([one.path for one in self.shrunk[_MAX_ROWS:]], 2)
        table = Table.of(self.shrunk, columns, limit=_MAX_ROWS, rest=f"and {rest}" if rest else "")
        sections = [Section("made smaller", [table])] if self.shrunk else []
        if self.small.wrong:
            sections.append(Section("the smaller program", [*self.small._page().blocks]))
        return Page(answer, [*(Line(line, style) for line in more), *sections, Notes(self.notes)], headline_style=style)
