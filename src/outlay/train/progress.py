"""How far a run is, on stderr: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Self

from rich import progress as bars
from rich.console import Console

from outlay.core.quantities import counted

_NUM_LINES = 10
_FIRST_PAUSE = 2.0  # seconds without a line, at the start
_LONGEST_PAUSE = 60.0


class Progress:
    """Shows step, loss, samples a second and the time left.

    Args:
        num_steps: steps in all.
        samples_a_step: samples that one step takes.
        console: where to; stderr by default.
        after: `step` and `seconds` of the step that the run continues after; None for a new run.
    """

    def __init__(
        self,
        num_steps: int,
        samples_a_step: int,
        console: Console | None = None,
        *,
        after: Mapping[str, float] | None = None,
    ) -> None:
        self._num_steps = num_steps
        self._samples_a_step = samples_a_step
        self._after = (int(after["step"]), after["seconds"]) if after else (0, 0.0)
        self._console = console or Console(stderr=True, highlight=False)
        self._bar: bars.Progress | None = None
        self._task = bars.TaskID(0)
        self._pause = _FIRST_PAUSE
        self._next = time.monotonic() + _FIRST_PAUSE

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = ("step {task.completed}/{task.total}", bars.BarColumn(), "{task.fields[facts]}")
            self._bar = bars.Progress(*columns, bars.TimeRemainingColumn(), console=self._console)
            self._task = self._bar.add_task("", total=self._num_steps, completed=self._after[0], facts="compiling")
            self._bar.start()
        else:
            goes_on = f", continued after step {self._after[0]}" if self._after[0] else ""
            self._console.print(
                f"{counted(self._num_steps, 'step')} of {counted(self._samples_a_step, 'sample')}{goes_on}: compiling"
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def show(self, metrics: Mapping[str, float]) -> None:
        """One more step is done: its metrics, with `step` and `seconds` since the first."""
        step, seconds = int(metrics["step"]), metrics["seconds"]
        taken, passed = step - self._after[0], seconds - self._after[1]
        rate = taken * self._samples_a_step / passed if passed else math.inf
        named = [f"{name} {value:.4f}" for name, value in metrics.items() if name not in ("step", "seconds")]
        facts = "  ".join([*named, f"{rate:,.0f} samples/s"])
        if self._bar:
            self._bar.update(self._task, completed=step, facts=facts)
        elif self._is_due(step):
            left = passed / taken * (self._num_steps - step)
            self._console.print(f"step {step}/{self._num_steps}  {facts}  {left:.0f} s left", soft_wrap=True)

    def _is_due(self, step: int) -> bool:
        """Whether a step gets a line: ten of a run, and in a long one more, of which the first come early."""
        now = time.monotonic()
        even = step % max(1, self._num_steps // _NUM_LINES) == 0 or step == self._num_steps
        if not even and now < self._next:
            return False
        if now >= self._next:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._next = now + self._pause
        return True
