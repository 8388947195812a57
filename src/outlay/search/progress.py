"""How far a search is, on stderr: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import Self

from rich import progress as bars
from rich.console import Console

from outlay.search.candidate import Candidate
from outlay.search.workers import Ended


class Progress:
    """Shows what is being compiled, what came of it, and how many are left.

    Args:
        total: how many candidates will be compiled.
        what: what for, such as the target.
        console: where to; stderr by default.
    """

    def __init__(self, total: int, what: str, console: Console | None = None) -> None:
        self._total = total
        self._done = 0
        self._what = what
        self._console = console or Console(stderr=True, highlight=False)
        self._running: list[str] = []
        self._bar: bars.Progress | None = None
        self._task = bars.TaskID(0)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = ("{task.completed}/{task.total}", bars.BarColumn(), bars.TimeElapsedColumn())
            self._bar = bars.Progress(*columns, "{task.fields[running]}", console=self._console, transient=True)
            self._task = self._bar.add_task("", total=self._total, running="")
            self._bar.start()
        else:
            self._console.print(f"compiling {self._total} candidates for {self._what}", soft_wrap=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def started(self, candidate: Candidate) -> None:
        """A candidate is being compiled."""
        self._running.append(str(candidate))
        self._show()

    def ended(self, candidate: Candidate, ended: Ended, what: str) -> None:
        """A candidate is done.

        Args:
            candidate: the candidate.
            ended: how its process ended.
            what: what came of it, in words.
        """
        self._running.remove(str(candidate))
        self._done += 1
        self._show()
        line = f"{self._done}/{self._total}  {candidate}: {what} ({ended.seconds:.0f} s)"
        self._console.print(line, markup=False, soft_wrap=True)

    def _show(self) -> None:
        if self._bar:
            self._bar.update(self._task, completed=self._done, running=", ".join(self._running))
