"""How far a run of a Brain is, on stderr: simulated time, how fast it passes, and the rates of the moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from rich import progress as bars
from rich.console import Console

from outlay.core.quantities import counted

_NUM_LINES = 10


class BrainProgress:
    """A live bar on a terminal, ten plain lines elsewhere.

    Args:
        num_steps: steps in all.
        dt: the time of a step in ms.
        console: where to; stderr by default.
    """

    def __init__(self, num_steps: int, dt: float, console: Console | None = None) -> None:
        self._num_steps, self._dt = num_steps, dt
        self._console = console or Console(stderr=True, highlight=False)
        self._bar: bars.Progress | None = None
        self._task = bars.TaskID(0)
        self._lines = 0

    def __enter__(self) -> Self:
        total = self._num_steps * self._dt
        if self._console.is_terminal:
            columns = ("{task.fields[time]}", bars.BarColumn(bar_width=24), "{task.fields[facts]}")
            self._bar = bars.Progress(*columns, bars.TimeRemainingColumn(), console=self._console)
            self._task = self._bar.add_task("", total=self._num_steps, time=f"0/{total:,.0f} ms", facts="compiling")
            self._bar.start()
        else:
            self._console.print(f"{counted(self._num_steps, 'step')} of {self._dt:g} ms: compiling")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def show(self, step: int, seconds: float, rates: Mapping[str, float]) -> None:
        """So many steps are done.

        Args:
            step: how many.
            seconds: what they took.
            rates: of each population in the last of them, in Hz.
        """
        now = f"{step * self._dt:,.0f}/{self._num_steps * self._dt:,.0f} ms"
        facts = "  ".join([real_time(step * self._dt, seconds), *(f"{n} {r:.0f}" for n, r in rates.items())]) + " Hz"
        if self._bar:
            self._bar.update(self._task, completed=step, time=now, facts=facts)
        elif step * _NUM_LINES >= self._num_steps * (self._lines + 1) or step == self._num_steps:
            self._lines = step * _NUM_LINES // self._num_steps
            self._console.print(f"{now}  {facts}", soft_wrap=True)


def real_time(simulated_ms: float, seconds: float) -> str:
    """How fast simulated time passes, in words.

    >>> real_time(1000.0, 0.25), real_time(10.0, 1.0)
    ('4.0x real time', '0.01x real time')
    """
    factor = simulated_ms / 1000 / seconds if seconds else float("inf")
    return f"{factor:.1f}x real time" if factor >= 1 else f"{factor:.2g}x real time"
