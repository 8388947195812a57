"""The facts of a proof that computes nothing: what was followed, what was not, and what no right program has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from outlay.analysis.hlo.hlo_module import SourceLine
from outlay.core.error_types import VerifyError
from outlay.core.one_line import OneLine
from outlay.core.quantities import counted, listed
from outlay.render.page import Column, Line, Notes, Page, Section, Style, Table
from outlay.render.report import Report, fields_as_json

FaultKind = Literal[
    "sum missing",
    "sum doubled",
    "order of parts",
    "replicas differ",
    "part of another",
    "numbers of devices",
    "not computed",
    "rounds of a loop",
    "memory of another",
]
StaticVerdict = Literal["no fault found", "different", "unknown"]

_MAX_ROWS = 24
_STYLES: dict[StaticVerdict, Style] = {"no fault found": "good", "different": "bad", "unknown": "warning"}


@dataclass(frozen=True)
class StaticFault(OneLine):
    """Something in a compiled program that no right program has.

    Attributes:
        kind: `sum missing`, `sum doubled`, `order of parts` (put together in another order), `replicas differ`, `part
            of another` (split along another dim than what it meets, or than planned), `numbers of devices` (that follow
            no grid or pattern), `not computed` (a result that is an argument), `rounds of a loop` (another number than
            the compiler noted), or `memory of another` (a result that is stored over an argument which is still read).
        axis: the mesh axis along which devices hold what they should not; empty if it is not about one.
        instruction: the instruction from which on they do, such as `dot %dot.3`.
        source: the user's line of that instruction; None if the compiler kept none.
        leaves: paths of the results that show it; empty if none can.
        words: what is wrong, in words.
    """

    kind: FaultKind
    axis: str
    instruction: str
    source: SourceLine | None
    leaves: tuple[str, ...]
    words: str

    @property
    def in_words(self) -> str:
        """The kind, the line, and what is wrong."""
        where = f" ({self.source})" if self.source else ""
        leaves = f"; it shows in {listed(self.leaves, 4)}" if self.leaves else ""
        over = f" over {self.axis!r}" if self.axis else ""
        return f"{self.kind}{over}: {self.instruction}{where} {self.words}{leaves}"


@dataclass(frozen=True)
class StaticVerification(Report):
    """Whether a compiled program's exchanges fit its layout, told without computing; `outlay.verify(..., static=True)`.

    That no fault was found does not mean that the numbers are the same: what a device computes with its part is not
    judged.

    Attributes:
        program: what was followed: its mode and mesh.
        num_known: of how many of its values it is known how the devices hold them.
        num_unknown: of how many it is not.
        num_collectives: how many collectives it has.
        num_results: how many arrays it returns.
        undecided: paths of results that may or may not be spread as the plan says.
        faults: what no right program has, in the order of the text.
        by_compiler: whether all its exchanges are the compiler's, so that each can be judged by itself.
        doubts: why nothing is known, in words.
        lost_at: if results are undecided, the operations with their lines after which something is not known any more.
    """

    program: str
    num_known: int
    num_unknown: int
    num_collectives: int
    num_results: int
    undecided: tuple[str, ...]
    faults: tuple[StaticFault, ...]
    by_compiler: bool
    doubts: tuple[str, ...] = ()
    lost_at: tuple[str, ...] = ()

    @property
    def verdict(self) -> StaticVerdict:
        """`different` with a fault, `unknown` if the program cannot be followed, else `no fault found`."""
        if self.faults:
            return "different"
        return "unknown" if self.doubts else "no fault found"

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        if self.verdict == "unknown":
            return f"unknown: {self.program}: {'; '.join(self.doubts)}"
        if self.faults:
            return f"different: {counted(len(self.faults), 'fault')} in {self.program}"
        decided = self.num_results - len(self.undecided)
        return (
            f"no fault found in {self.program}: {decided} of {counted(self.num_results, 'result')} "
            f"{'comes' if decided == 1 else 'come'} out as planned"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What was followed, and what limits the answer, in words."""
        total = self.num_known + self.num_unknown
        notes = [
            f"of {counted(total, 'value')} and {counted(self.num_collectives, 'collective')}, it is known of "
            f"{self.num_known:,} how the devices hold them, and not of {self.num_unknown:,}",
            "nothing was computed: what each device computes with its part was not judged (outlay verify without "
            "--static compares numbers)",
        ]
        if self.undecided:
            notes.append(f"not decided: {counted(len(self.undecided), 'result')}: {listed(self.undecided, 4)}")
        if self.lost_at:
            notes.append(f"what devices hold is not known from here on: {'; '.join(self.lost_at)}")
        if not self.by_compiler:
            notes.append(
                "the step names exchanges of its own (in a shard_map), which may mean what they like: only results "
                "were judged"
            )
        return tuple(notes)

    def raise_if_different(self, *, allow_unknown: bool = False) -> None:
        """Raise if there is a fault, or if the program cannot be followed.

        Args:
            allow_unknown: do not raise if it cannot be followed.

        Raises:
            VerifyError: there is a fault, with its line and axis; or the answer is unknown.
        """
        if self.verdict == "different" or (self.verdict == "unknown" and not allow_unknown):
            raise VerifyError(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**fields_as_json(self), "verdict": self.verdict, "notes": list(self.notes)}

    def _page(self) -> Page:
        columns = [
            (Column("fault", "words"), lambda fault: fault.kind),
            (Column("axis", "code"), lambda fault: fault.axis),
            (Column("line", "code"), lambda fault: str(fault.source or "")),
            (Column("instruction", "code"), lambda fault: fault.instruction),
            (Column("", "words"), lambda fault: fault.words),
        ]
        first = [Line(f"first: {self.faults[0].in_words}", "bad")] if self.faults else []
        table = [Section("faults", [Table.of(self.faults, columns, limit=_MAX_ROWS)])] if self.faults else []
        return Page(self.headline, [*first, *table, Notes(self.notes)], headline_style=_STYLES[self.verdict])
