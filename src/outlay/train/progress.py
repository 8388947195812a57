"""Show the progress of a run: a live bar on a terminal or in a notebook, plain lines on stderr elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from rich import progress as bars
from rich.console import Console

from outlay.core.one_line import OneLine
from outlay.core.quantities import counted

_NUM_LINES = 10
_FIRST_PAUSE = 2.0  # seconds without a line, at the start
_LONGEST_PAUSE = 60.0
_PAUSE_OF_NOTEBOOK = 0.2  # each update goes through the browser
_CURVE = (180, 28)  # pixels
_MOST_POINTS = 180


class Progress(OneLine):
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
        self._notebook = NotebookBar(num_steps) if console is None and in_notebook() else None
        self._console = console or Console(stderr=True, highlight=False)
        self._bar: bars.Progress | None = None
        self._task = bars.TaskID(0)
        self._lines = self._after[0] * _NUM_LINES // num_steps  # as if the earlier run had printed its share
        self._pause = _FIRST_PAUSE
        self._next = time.monotonic() + _FIRST_PAUSE

    def __enter__(self) -> Self:
        first = self._after[0]
        if self._notebook:
            self._notebook.show(first, f"{self._position(first)}  compiling", is_last=True)
        elif self._console.is_terminal:
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
        if self._notebook:
            self._notebook.show(step, f"{self._position(step)}  {facts}", is_last=step == self._num_steps)
        elif self._bar:
            self._bar.update(self._task, completed=step, position=self._position(step), facts=facts)
        elif self._is_due(step):
            left = (self._num_steps - step) / rate
            self._console.print(f"{self._position(step)}  {facts}  {left:.0f} s left", soft_wrap=True)

    def plot(self, step: int, value: float) -> None:
        """Add a point to the curve that a notebook shows beside the bar.

        Args:
            step: the number of the step.
            value: the number after it, such as its loss.
        """
        if self._notebook:
            self._notebook.points.append((step, value))

    def _in_short(self) -> str:
        return f"of {counted(self._num_steps, 'step')}"

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


def in_notebook() -> bool:
    """Return whether this process shows its output in a notebook."""
    # Asked of what is imported: a process without IPython is in none.
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookBar:
    """One output of a notebook's cell, which is replaced as the run goes on: a bar, the metrics, and a small curve.

    Args:
        num_steps: the total number of steps.

    Attributes:
        points: the curve so far.
    """

    def __init__(self, num_steps: int) -> None:
        self.points: list[tuple[int, float]] = []
        self._num_steps = num_steps
        self._handle: Any = None
        self._next = -math.inf

    def show(self, step: int, words: str, *, is_last: bool) -> None:
        """Show the position, at most a few times a second, and always the last one."""
        now = time.monotonic()
        if now < self._next and not is_last:
            return
        self._next = now + _PAUSE_OF_NOTEBOOK
        from IPython.display import HTML, display
        from markupsafe import escape

        bar = f'<progress value="{step}" max="{self._num_steps}" style="width:16em"></progress>'
        shown = HTML(f'<div style="font-family:monospace">{bar} {escape(words)} {self._curve()}</div>')
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)

    def _curve(self) -> str:
        """Draw the curve as small as a line of text."""
        points = [(x, y) for x, y in self.points if math.isfinite(y)]
        points = points[:: -(-len(points) // _MOST_POINTS) or 1]
        if len(points) < 2:
            return ""
        (first, last), values = (points[0][0], points[-1][0]), [y for _, y in points]
        low, span = min(values), max(values) - min(values) or 1.0
        width, height = _CURVE
        places = " ".join(
            f"{width * (x - first) / (last - first):.1f},{(height - 2) * (1 - (y - low) / span) + 1:.1f}"
            for x, y in points
        )
        line = f'<polyline points="{places}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        style = 'style="vertical-align:middle" role="img" aria-label="loss"'
        return f'<svg width="{width}" height="{height}" {style}>{line}</svg>'
