"""A process that has ended well while others wait for it in a collective, where they would wait for ever."""

from __future__ import annotations

import time
from collections.abc import Collection

from outlay.launch.job_folder import Beat, JobFolder
from outlay.launch.proc_files import is_idle, waits_for_a_thread
from outlay.launch.stacks import collect_stacks, waits_outside_python

FINISHED = "finished"
"""What a process is doing, in the words of its last beat, when its program has ended and only JAX's end is left."""

_PATIENCE = {"cpu": 1.5}  # seconds without a sign of work in which those that remain must be waiting
_PATIENCE_ELSEWHERE = 60.0  # a process whose GPU or TPU works does nothing itself


class LeftEarly:
    """Decides whether those that remain are waiting for those that have finished.

    Args:
        folder: of the job.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._worked_at = time.monotonic()
        self._beats: dict[int, Beat | None] = {}

    def waiting(self, finished: Collection[int], running: Collection[int]) -> dict[int, str]:
        """The stacks of the processes that wait, by number; empty as long as that is not sure.

        Args:
            finished: those that have ended well, or would if the others let them.
            running: all others.
        """
        beats = {number: self._folder.beat(number) for number in running}
        joined = [who for number in running if (who := self._folder.who(number))]
        idle = len(joined) == len(running) and all(is_idle(who.pid) for who in joined)
        if not finished or not running or not idle or beats != self._beats:
            self._worked_at, self._beats = time.monotonic(), beats
            return {}
        platform = joined[0].devices[0]["platform"] if joined[0].devices else ""
        if time.monotonic() - self._worked_at < _PATIENCE.get(platform, _PATIENCE_ELSEWHERE):
            return {}
        self._worked_at = time.monotonic()
        in_jax = [who.process for who in joined if waits_for_a_thread(who.pid)]
        stacks = collect_stacks(self._folder, in_jax)
        return {number: text for number, text in stacks.items() if waits_outside_python(text)}
