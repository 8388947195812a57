"""Tell whether a process has stalled: for how long each process has been silent, and the limits of silence."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from outlay.jobs.job_folder import JOINED, JOINING, Beat, is_after_the_last

OFF = math.inf
"""A limit that is never reached."""

TIMES_A_GAP = 20
"""While it steps, a process may be silent for this many times its longest silence so far."""

BETWEEN_STEPS = 300.0
"""Seconds of silence that are always allowed while it steps: data may stall and come again."""

BEFORE_THE_FIRST = 1800.0
"""Seconds without a sign of life allowed for compiling, the first step, and other work that a program announces."""

TOGETHER = 60.0
"""Seconds after which nothing more can come if all wait for each other, or a signal holds one of them."""

_REMEMBERED = 100


@dataclass(frozen=True)
class Limits:
    """Limits of how long a process may give no sign of life, neither a heartbeat nor a line of output.

    Attributes:
        stuck_after: seconds, whatever it does; None for limits by what it does, and by its own steps.
        start_within: seconds before its first step is finished, instead.
    """

    stuck_after: float | None = None
    start_within: float | None = None

    def before_the_first(self) -> float | None:
        """Return the user's limit for the time before the first step; None where there is none."""
        return self.stuck_after if self.start_within is None else self.start_within

    def together(self) -> float:
        """Return the limit in seconds for a job that only a signal from outside could move."""
        if self.stuck_after is None:
            return TOGETHER
        return self.stuck_after if self.stuck_after == OFF else min(TOGETHER, self.stuck_after)


class Silence:
    """The silence of one process: the time since its last sign of life.

    Args:
        limits: how long it may be silent.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._beat: Beat | None = None
        self._step_seconds: list[float] = []
        self._longest_gap = 0.0
        self.alive_at = time.monotonic()

    def see(self, beat: Beat | None, last_line: float | None) -> None:
        """Take note of the last heartbeat, and of when the process last wrote something."""
        self.alive_at = max(self.alive_at, last_line or 0.0)
        if beat is None or beat == self._beat:
            return
        before, self._beat = self._beat, beat
        now = time.monotonic()  # this machine's own clock; that of the beat may be another one's
        # Gaps before the first step are not a measure: compiling takes as long as it takes.
        if before and before.step is not None and beat.step is not None:
            self._longest_gap = max(self._longest_gap, now - self.alive_at)
            if beat.step > before.step:
                seconds = (beat.time - before.time) / (beat.step - before.step)
                self._step_seconds = [*self._step_seconds[1 - _REMEMBERED :], seconds]
        self.alive_at = now

    def pause(self, seconds: float) -> None:
        """Leave out these seconds, in which nobody could work or be seen: the job or the machine was suspended."""
        self.alive_at = min(self.alive_at + seconds, time.monotonic())

    @property
    def beat(self) -> Beat | None:
        """The last beat."""
        return self._beat

    @property
    def done(self) -> str:
        """The last step that it has finished, in words."""
        step = self._beat.step if self._beat else None
        return "no step finished" if step is None else f"step {step} finished"

    @property
    def seconds_a_step(self) -> float | None:
        """The median seconds of its last steps; None before the second."""
        return sorted(self._step_seconds)[len(self._step_seconds) // 2] if self._step_seconds else None

    def seconds(self, moment: float) -> float:
        """Return for how many seconds it had been silent at a moment.

        Args:
            moment: of `time.monotonic`, from before its signs of life were looked for: who is held by a signal
                between a look and its judgement must not take that time for the silence of others.
        """
        return moment - self.alive_at

    def __str__(self) -> str:
        seconds = self.seconds(time.monotonic())
        if self._beat is None:
            return f"silent for {seconds:.1f} s"
        return f"{self.done}, in {self._beat.doing!r} for {seconds:.1f} s"

    @property
    def limit(self) -> float | None:
        """For how many seconds it may be silent; None for any time."""
        beat = self._beat
        if beat is None or beat.step is None:
            asked = self._limits.before_the_first()
            if asked is not None:
                return asked
            # `outlay.join()` has a time-out of its own, and a program that does not beat may do anything.
            return BEFORE_THE_FIRST if beat and beat.doing not in (*JOINING, JOINED) else None
        if self._limits.stuck_after is not None:
            return self._limits.stuck_after
        if is_after_the_last(beat):
            return None
        if not beat.doing.startswith("step "):
            return BEFORE_THE_FIRST
        return max(BETWEEN_STEPS, TIMES_A_GAP * self._longest_gap)
