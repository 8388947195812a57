"""The result of every run: facts that print themselves, and are not lost if they cannot be written."""

from __future__ import annotations

import abc
import contextlib
import os
import pickle
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outlay.core.error_types import RunFolderError
from outlay.core.quantities import counted
from outlay.render.page import Code, Facts, Line, Page
from outlay.render.report import Report


@dataclass(frozen=True, kw_only=True)
class Result(Report, abc.ABC):
    """The result of a finished run: facts that print themselves.

    Attributes:
        recipe: the recipe's name.
        layout: the layout's name.
        mode: how it was executed.
        devices: what it ran on, in words.
        simulated: whether the devices were simulated, so that times say nothing about speed.
        num_steps: steps taken, including those before it was continued.
        resumed_after: the step that the run was continued after; 0 for one from the start.
        seconds: the time of the steps, without compiling.
        recorded: the addresses that were recorded.
        num_rows: recorded steps.
        folder: the run folder.
    """

    recipe: str
    layout: str
    mode: str
    devices: str
    simulated: bool
    num_steps: int
    resumed_after: int
    seconds: float
    recorded: tuple[str, ...]
    num_rows: int
    folder: str

    @property
    @abc.abstractmethod
    def facts(self) -> dict[str, str]:
        """Return the result in words, by name, for people."""

    @property
    def shown(self) -> str:
        """Return further text that the run shows; empty for none."""
        return ""

    @property
    def title(self) -> str:
        """The heading of its page."""
        return f"{self.recipe} under {self.layout}"

    @property
    def continued(self) -> str:
        """Text to follow the number of steps; empty for a run from the start."""
        return f", continued after step {self.resumed_after}" if self.resumed_after else ""

    @property
    def caveat(self) -> str:
        """Text to follow every time."""
        return " (simulated devices: this is not a speed)" if self.simulated else ""

    @property
    def recorded_in_words(self) -> str:
        """How much was recorded; empty for nothing."""
        if not self.recorded:
            return ""
        return f"{counted(self.num_rows, 'row')} of {counted(len(self.recorded), 'address', 'addresses')}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**asdict(self), "recorded": list(self.recorded)}

    def _in_short(self) -> str:
        return f"{self.title}, {counted(self.num_steps, 'step')} on {self.devices}, folder {self.folder}"

    def _page(self) -> Page:
        facts = Facts({name.replace("_", " "): words for name, words in self.facts.items()})
        report = Line(f"The whole report: {self.folder}/report.html")
        shown = [Code(self.shown)] if self.shown else []
        return Page(self.title, [facts, *shown, report])

    def __str__(self) -> str:
        lines = [f"{name:<9} {words}" for name, words in self.facts.items()]
        folder = f"run folder {self.folder}, report {self.folder}/report.html (open it in a browser)"
        shown = ["", self.shown, ""] if self.shown else []
        return "\n".join([*lines, *shown, folder])


class ResultNotWritten(RunFolderError):
    """A run ended well, but its folder could not be written to at the end.

    Attributes:
        result: the result of the run.
    """

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


@contextlib.contextmanager
def result_not_lost(result: Result) -> Iterator[None]:
    """Attach the result of the run to the error if something cannot be written after the last step.

    Raises:
        ResultNotWritten: something cannot be written.
    """
    try:
        yield
    except RunFolderError as error:
        raise ResultNotWritten(f"the run ended well, but {error}", result) from error


RESULT = "OUTLAY_RESULT"
"""The variable that names the file in which the first process of a job leaves its result for `outlay.run`."""


def hand_over(result: Result) -> None:
    """Leave the result of a run where `outlay.run`, in the process that has asked for it, looks for it."""
    if file := os.environ.get(RESULT):
        Path(file).write_bytes(pickle.dumps(result))
