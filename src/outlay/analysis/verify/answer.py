"""What a proof by numbers answers: the same, different or unknown."""

from __future__ import annotations

import abc
from typing import Literal

from outlay.core.error_types import VerifyError
from outlay.render.report import Report

Verdict = Literal["same", "different", "unknown"]


class Answer(Report):
    """The answer of a proof by numbers, which prints itself."""

    @property
    @abc.abstractmethod
    def verdict(self) -> Verdict:
        """`same`, `different`, or `unknown` if a fault could hide."""

    @property
    def ok(self) -> bool:
        """Whether the verdict is `same`."""
        return self.verdict == "same"

    def raise_if_different(self, *, allow_unknown: bool = False) -> None:
        """Raise if something differs, or if the answer is unknown.

        Args:
            allow_unknown: do not raise if the answer is unknown.

        Raises:
            VerifyError: something differs, with all that is wrong; or the answer is unknown, with the reasons.
        """
        if self.verdict == "different" or (self.verdict == "unknown" and not allow_unknown):
            raise VerifyError(str(self))
