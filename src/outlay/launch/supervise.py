"""Watch the processes of a job until all have ended, by themselves or because something is wrong."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from outlay.launch.ending import Ending, after_failure, left_early, stuck
from outlay.launch.job_folder import Beat, JobFolder
from outlay.launch.job_progress import JobProgress
from outlay.launch.left_early import FINISHED, LeftEarly
from outlay.launch.merged_output import MergedOutput
from outlay.launch.pipes import Pipes
from outlay.launch.proc_files import is_stopped
from outlay.launch.process import Process, end_all
from outlay.launch.silence import Silence
from outlay.launch.stacks import collect_stacks
from outlay.launch.who_table import who_table

_LOOK_EVERY = 0.1  # seconds
_OTHERS_TOO = 0.4  # seconds after a failure in which others may fail, so that the first can be told from the last


class Supervisor:
    """Watches processes that have been started.

    Args:
        processes: of the job.
        folder: of the job.
        output: where their lines go.
        stuck_after: seconds without a sign of life after which the job is stuck; None for a rule by its own steps.
    """

    def __init__(
        self, processes: Sequence[Process], folder: JobFolder, output: MergedOutput, stuck_after: float | None
    ) -> None:
        self._processes = processes
        self._folder = folder
        self._output = output
        self._pipes = Pipes(processes, output)
        self._silence = [Silence(stuck_after) for _ in processes]
        self._left_early = LeftEarly(folder)
        self._failed: dict[int, float] = {}
        self._introduced = False

    def watch(self) -> Ending:
        """Wait until the job has ended. All processes have ended then, however this returns."""
        try:
            with JobProgress() as progress:
                return self._watch(progress)
        finally:
            self._end()

    def _watch(self, progress: JobProgress) -> Ending:
        while True:
            self._pipes.wait(_LOOK_EVERY)
            self._look()  # before reading: what the others say after a failure is not shown
            self._pipes.read()
            if self._failed:
                return self._after_failure()
            if not any(process.exit_code is None for process in self._processes):
                return Ending(0, is_failure=False)
            beats = {process.number: self._folder.beat(process.number) for process in self._processes}
            progress.show(beats, max((s for one in self._silence if (s := one.seconds_a_step)), default=None))
            if ending := self._without_progress(beats):
                return ending

    def _look(self) -> None:
        for process in self._processes:
            process.look()
            failure = self._folder.failure(process.number)
            if process.number not in self._failed and (failure or process.exit_code):
                ended = process.ended or time.time()
                self._failed[process.number] = failure.time if failure else ended
                self._output.hold_errors()
        if not self._introduced:
            self._introduce()

    def _introduce(self) -> None:
        everyone = [who for process in self._processes if (who := self._folder.who(process.number))]
        if len(everyone) == len(self._processes):
            self._introduced = True
            print(who_table(everyone), file=sys.stderr, flush=True)

    def _after_failure(self) -> Ending:
        deadline = time.monotonic() + _OTHERS_TOO
        while time.monotonic() < deadline and any(process.exit_code is None for process in self._processes):
            self._pipes.wait(0.05)
            self._look()
            self._pipes.read()
        self._end()
        return after_failure(self._processes, self._failed, self._folder, self._output)

    def _without_progress(self, beats: Mapping[int, Beat | None]) -> Ending | None:
        last_lines = self._pipes.last_line
        latest = max(last_lines.values(), default=None)
        for number, beat in beats.items():
            # Often only process 0 prints, so a line of any process is a sign of life of those that do not beat.
            self._silence[number].see(beat, last_lines.get(number) if beat else latest)
        finished = [p for p in self._processes if p.exit_code == 0 or _has_finished(beats[p.number])]
        others = [p for p in self._processes if p not in finished]
        if any(self._silence[process.number].is_too_long() for process in others):
            return self._stuck(others)
        waiting = self._left_early.waiting([p.number for p in finished], [p.number for p in others])
        if waiting:
            self._output.hold_errors()
            self._end()
            return left_early(self._processes, finished, waiting)
        return None

    def _stuck(self, running: Sequence[Process]) -> Ending:
        self._output.hold_errors()
        why = {}
        for process in running:
            who = self._folder.who(process.number)
            held = who and is_stopped(who.pid)
            why[process.number] = f"{self._silence[process.number]}{', held by a signal (SIGSTOP)' if held else ''}"
        stacks = collect_stacks(self._folder, [process.number for process in running])
        self._end()
        return stuck(self._processes, why, stacks)

    def _end(self) -> None:
        end_all(self._processes)
        self._pipes.read_rest()


def _has_finished(beat: Beat | None) -> bool:
    return beat is not None and beat.doing == FINISHED
