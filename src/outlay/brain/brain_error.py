"""The one error of Brains."""

from __future__ import annotations

from collections.abc import Sequence

from outlay.core.error_types import OutlayError, Problem, message


class BrainError(OutlayError, ValueError):
    """A Brain that cannot be built, read from its file, or run. `problems` lists every offender.

    Attributes:
        problems: one `Problem` per module, port, connection or setting at fault; empty where the fault is one.
    """

    def __init__(self, headline: str, problems: Sequence[Problem] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message(headline, self.problems))
