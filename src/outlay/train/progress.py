"""Show the progress of a run on stderr: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Self

from rich import progress as bars
from rich.console import Console

from outlay.core.quantities import counted

_NUM_LINES = 10
_FIRST_PAUSE = 2.0  # seconds without a line, at the start
_LONGEST_PAUSE = 60.0


class Progress:
    """Show the position, the metrics and the speed of a run, and the time left.

    Args:
        num_steps: the total number of steps.
        each: the content of a step, such as `16 samples`.
        speed: formats steps per second.
        console: where to write; stderr by default.
        position: formats the position after a step; `step 3/10` by default.
        after: `step` and `seconds` of the step after which the run continues; None for a new run.
    """

    def __init__(
        self,
        num_steps: int,
        each: str,
        speed: Callable[[float], str],
        console: Console | None = None,
        *,
        position: Callable[[int], str] | None = None,
        after: Mapping[str, float] | None = None,
    ) -> None:
        self._num_steps, self._each, self._speed = num_steps, each, speed
        self._position = position or (lambda step: f"step {step}/{num_steps}")
        self._after = (int(after["step"]), after["seconds"]) if after else (0, 0.0)
        self._console = console or Console(stderr=True, highlight=False)
        self._bar: bars.Progress | None = None
        self._task = bars.TaskID(0)
        self._lines = self._after[0] * _NUM_LINES // num_steps  # as if the earlier run had printed its share
        self._pause = _FIRST_PAUSE
        self._next = time.monotonic() + _FIRST_PAUSE

    def __enter__(self) -> Self:
        first = self._after[0]
        if self._console.is_terminal:
            columns = ("{task.fields[position]}", bars.BarColumn(bar_width=24), "{task.fields[facts]}")
            self._bar = bars.Progress(*columns, bars.TimeRemainingColumn(), console=self._console)
            position = self._position(first)
            self._task = self._bar.add_task(
                "", total=self._num_steps, completed=first, position=position, facts="compiling"
            )
            self._bar.start()
        else:
            goes_on = f", continued after step {first}" if first else ""
            self._console.print(f"{counted(self._num_steps, 'step')} of {self._each}{goes_on}: compiling")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def show(self, step: int, seconds: float, facts: str) -> None:
        """Show that more steps are done.

        Args:
            step: the number of steps so far.
            seconds: their duration.
            facts: the metrics of the last step, as text.
        """
        taken, passed = step - self._after[0], seconds - self._after[1]
        rate = taken / passed if passed else math.inf
        facts = "  ".join(filter(None, (facts, self._speed(rate))))
        if self._bar:
            self._bar.update(self._task, completed=step, position=self._position(step), facts=facts)
        elif self._is_due(step):
            left = (self._num_steps - step) / rate
            self._console.print(f"{self._position(step)}  {facts}  {left:.0f} s left", soft_wrap=True)

    def _is_due(self, step: int) -> bool:
        """Return whether to print a line for a step: ten per run, more in a long run, with the first ones early."""
        now = time.monotonic()
        lines = step * _NUM_LINES // self._num_steps
        if lines <= self._lines and step < self._num_steps and now < self._next:
            return False
        if now >= self._next:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._lines, self._next = lines, now + self._pause
        return True
