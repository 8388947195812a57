"""Which processes have been silent for too long."""

from __future__ import annotations

import statistics
import time

from outlay.launch.job_folder import Beat

TIMES_A_STEP = 20
"""How many times longer than a step takes a process may be silent while it steps."""

AT_LEAST = 60.0
"""Seconds of silence that are always allowed, unless the user says otherwise."""

_ENOUGH_STEPS = 5
_REMEMBERED = 100


class Silence:
    """Follows the beats of one process.

    Args:
        stuck_after: seconds without beat or output after which it is stuck, whatever it does; None: only while it is
            stepping, after `TIMES_A_STEP` times what its steps take, and `AT_LEAST`.
    """

    def __init__(self, stuck_after: float | None) -> None:
        self._stuck_after = stuck_after
        self._beat: Beat | None = None
        self._step_seconds: list[float] = []
        self.alive_at = time.monotonic()

    def see(self, beat: Beat | None, last_line: float | None) -> None:
        """Take in the last beat, and when the process last wrote something."""
        self.alive_at = max(self.alive_at, last_line or 0.0)
        if beat is None or beat == self._beat:
            return
        before, self._beat = self._beat, beat
        self.alive_at = time.monotonic()  # this machine's own clock; that of the beat may be another one's
        if before and before.step is not None and beat.step is not None and beat.step > before.step:
            seconds = (beat.time - before.time) / (beat.step - before.step)
            self._step_seconds = [*self._step_seconds[1 - _REMEMBERED :], seconds]

    @property
    def beat(self) -> Beat | None:
        """The last beat."""
        return self._beat

    @property
    def seconds_a_step(self) -> float | None:
        """What its steps take; None before the second."""
        return statistics.median(self._step_seconds) if self._step_seconds else None

    @property
    def seconds(self) -> float:
        """For how long it has been silent."""
        return time.monotonic() - self.alive_at

    def is_too_long(self) -> bool:
        """Whether it is stuck."""
        limit = self._limit()
        return limit is not None and self.seconds > limit

    def __str__(self) -> str:
        if self._beat is None:
            return f"silent for {self.seconds:.1f} s"
        steps = "no step" if self._beat.step is None else f"step {self._beat.step}"
        return f"{steps} finished, in {self._beat.doing!r} for {self.seconds:.1f} s"

    def _limit(self) -> float | None:
        """For how many seconds it may be silent; None where nothing is known."""
        if self._stuck_after is not None:
            return self._stuck_after
        stepping = self._beat is not None and self._beat.doing.startswith("step ")
        if not stepping or len(self._step_seconds) < _ENOUGH_STEPS:
            return None
        return max(AT_LEAST, TIMES_A_STEP * statistics.median(self._step_seconds))
