"""Show how far a search is: the arithmetic, and what is being compiled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Self

from rich import progress as bars
from rich.console import Console

from outlay.core.quantities import counted
from outlay.search.candidate import Candidate
from outlay.search.workers import Ended

_EVERY = 10.0
"""Seconds from line to line in a log."""


def counting(candidates: Sequence[Candidate], what: str, console: Console | None = None) -> Iterator[Candidate]:
    """Yield candidates, and show how many of them the arithmetic has seen: each new set of options is traced.

    Args:
        candidates: the candidates.
        what: what they are for, such as the target.
        console: where to; stderr by default.
    """
    console = console or Console(stderr=True, highlight=False)
    label = f"arithmetic over {counted(len(candidates), 'candidate')} for {what}"
    if console.is_terminal:
        columns = ("{task.completed}/{task.total}", bars.BarColumn(), bars.TimeElapsedColumn(), label)
        with bars.Progress(*columns, console=console, transient=True) as bar:
            yield from bar.track(candidates, total=len(candidates))
        return
    last = time.monotonic()
    for number, candidate in enumerate(candidates):
        if time.monotonic() - last > _EVERY:
            last = time.monotonic()
            console.print(f"{label}: {number} done", markup=False, soft_wrap=True)
        yield candidate


class Progress:
    """Show what is being compiled, its results, and how many are left.

    Args:
        total: how many candidates will be compiled.
        what: what they are compiled for, such as the target.
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
            # A log has no width: no line of it is broken.
            self._console.print(f"compiling {self._total} candidates for {self._what}", soft_wrap=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def started(self, candidate: Candidate) -> None:
        """Report that a candidate is being compiled."""
        self._running.append(str(candidate))
        self._show()

    def ended(self, candidate: Candidate, ended: Ended, what: str) -> None:
        """Report that a candidate is done.

        Args:
            candidate: the candidate.
            ended: how its process ended.
            what: its result in words.
        """
        self._running.remove(str(candidate))
        self._done += 1
        self._show()
        line = f"{self._done}/{self._total}  {candidate}: {what} ({ended.seconds:.0f} s)"
        self._console.print(line, markup=False, soft_wrap=True)

    def _show(self) -> None:
        if self._bar:
            self._bar.update(self._task, completed=self._done, running=", ".join(self._running))
