"""How far a job is: one live line on a terminal for all its processes, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Self

from rich import progress as bars
from rich.console import Console

from outlay.launch.job_folder import Beat
from outlay.launch.screen import is_writable

_EVERY = 0.25  # seconds


class JobProgress:
    """Shows the step, of how many, seconds a step, and which process is the slowest.

    Args:
        console: where to; stderr by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._bar: bars.Progress | None = None
        self._task = bars.TaskID(0)
        self._next = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar = bars.Progress(
                "step {task.completed}/{task.fields[of]}",
                bars.BarColumn(),
                "{task.fields[facts]}",
                console=self._console,
                auto_refresh=False,  # it would need a thread, and the launcher forks
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # else lines that are piped would go to the terminal
            )
            self._task = self._bar.add_task("", total=None, of="?", facts="starting")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar and is_writable(self._console.file):  # a terminal that Ctrl-S holds would hold the launcher too
            self._bar.stop()

    def show(self, beats: Mapping[int, Beat | None], seconds_a_step: float | None) -> None:
        """Show how far the processes are, a few times a second at most.

        Args:
            beats: the last of each process.
            seconds_a_step: what the slowest process takes, where that is known.
        """
        if self._bar is None or time.monotonic() < self._next or not is_writable(self._console.file):
            return
        self._next = time.monotonic() + _EVERY
        known = {number: beat for number, beat in beats.items() if beat}
        if not known:
            return
        number = slowest(known)
        last, of = known[number], max((beat.of or 0 for beat in known.values()), default=0)
        facts = f"slowest: process {number}, {last.doing}"
        if seconds_a_step is not None:
            facts = f"{seconds_a_step:.2g} s a step, {facts}"
        if ahead := max(beat.step or 0 for beat in known.values()) - (last.step or 0):
            facts += f", {ahead} behind"
        self._bar.update(self._task, completed=last.step or 0, total=of or None, of=of or "?", facts=facts)
        self._bar.refresh()


def slowest(beats: Mapping[int, Beat]) -> int:
    """The process that has finished the fewest steps; of several, the one that has finished its last one last."""
    return min(beats, key=lambda number: (beats[number].step or 0, -beats[number].time))
