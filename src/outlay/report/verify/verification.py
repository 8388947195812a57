"""What a proof found, as facts that print themselves."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from rich.console import Group

from outlay.core.errors import VerifyError
from outlay.core.table import to_text
from outlay.report.verify.facts import LeafCheck
from outlay.report.verify.render import lines, page


@dataclass(frozen=True)
class Verification:
    """Whether a program computes what it should, array by array; made by `outlay.verify`.

    `str()` gives text, a notebook shows a table.

    Attributes:
        program: what was checked: its mode and mesh.
        against: what it was compared with.
        num_steps: how many steps, each from the same state in both.
        batches: where the batches came from.
        checks: every array of every step, in the order of the steps and, in a step, gradients, outputs, new state.
    """

    program: str
    against: str
    num_steps: int
    batches: str
    checks: tuple[LeafCheck, ...]

    @property
    def wrong(self) -> tuple[LeafCheck, ...]:
        """The checks that failed, the first one first."""
        return tuple(check for check in self.checks if not check.ok)

    @property
    def ok(self) -> bool:
        """Whether every array is the same up to rounding."""
        return not self.wrong

    @property
    def leaves(self) -> tuple[LeafCheck, ...]:
        """One check for each array, failed ones first: its first to fail, or else the one that came nearest to it."""
        found: dict[tuple[str, str], LeafCheck] = {}
        for check in self.checks:
            best = found.setdefault((check.kind, check.path), check)
            if best.ok and (not check.ok or check.nearness > best.nearness):
                found[check.kind, check.path] = check
        return tuple(sorted(found.values(), key=lambda check: (check.ok, 0 if check.ok else check.step)))

    @property
    def headline(self) -> str:
        """The answer in a sentence."""
        leaves = self.leaves
        did = f"{self.program}, against {self.against}, {self.num_steps} step{'s' if self.num_steps != 1 else ''}"
        if self.ok:
            return f"the same: all {len(leaves)} arrays of {did}"
        num_wrong = sum(not leaf.ok for leaf in leaves)
        return f"different: {num_wrong} of {len(leaves)} arrays of {did}\nfirst: {self.wrong[0].in_words}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What limits the proof, in words."""
        weak = list(dict.fromkeys(check.path for check in self.checks if check.ok and check.amplified))
        shown = ", ".join(weak[:4]) + (f" and {len(weak) - 4} more" if len(weak) > 4 else "")
        much = f"rounding alone moves {len(weak)} array(s) by more than 1 %, so they prove little: {shown}"
        unseen = "gradients are not among them: only steps from outlay.train_step say what they are"
        has_gradients = any(check.kind == "gradient" for check in self.checks)
        return (f"batches {self.batches}", *([] if has_gradients else [unseen]), *([much] if weak else []))

    def raise_if_different(self) -> None:
        """Do nothing if all is the same.

        Raises:
            VerifyError: with the first wrong leaf, and all others.
        """
        if not self.ok:
            raise VerifyError(str(self))

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "ok": self.ok,
            "program": self.program,
            "against": self.against,
            "num_steps": self.num_steps,
            "batches": self.batches,
            "first_wrong": self.wrong[0].in_words if self.wrong else None,
            "checks": [_finite(dataclasses.asdict(check)) for check in self.checks],
        }

    def to_html(self) -> str:
        """As a complete page in one file, which works offline."""
        return page(self.headline, self.ok, self.leaves, self.notes)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __str__(self) -> str:
        return to_text(self)

    def __rich__(self) -> Group:
        return lines(self.headline, self.ok, self.leaves, self.notes)


def _finite(facts: dict[str, Any]) -> dict[str, Any]:
    """JSON knows neither NaN nor infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in facts.items()
    }
