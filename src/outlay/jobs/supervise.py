"""Watch the processes of a job until all have ended, by themselves or because something is wrong."""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Self

from rich import progress as bars
from rich.console import Console

from outlay.core.table import table, to_text
from outlay.jobs import job_result
from outlay.jobs.deadlock import DeadlockDetector, collect_stacks
from outlay.jobs.exit_codes import STOPPING
from outlay.jobs.job_folder import FINISHED, JOINING, Beat, JobFolder, JoinedProcess
from outlay.jobs.job_result import JobResult
from outlay.jobs.merged_output import MergedOutput
from outlay.jobs.proc_files import is_stopped
from outlay.jobs.process import Pipes, Process, end_all
from outlay.jobs.process_info import origin_text
from outlay.jobs.screen import is_writable
from outlay.jobs.stall import BEFORE_THE_FIRST, Limits, Silence

_LOOK_EVERY = 0.1  # seconds
_SUSPENDED = 3.0  # seconds between two looks after which this process itself did not run
_OTHERS_TOO = 0.4  # seconds after a failure in which others may fail, so that the first can be told from the last
_STILL_ENDING = 5.0  # seconds in which one that others have lost may still be ending: writing a core takes that long


class Supervisor:
    """Watches the running processes of a job.

    Args:
        processes: the processes of the job.
        folder: the folder of the job.
        output: where their lines go.
        limits: how long they may be silent.

    Attributes:
        best: the last step that any process has finished; None where none has.
    """

    def __init__(self, processes: Sequence[Process], folder: JobFolder, output: MergedOutput, limits: Limits) -> None:
        self._processes = processes
        self._folder = folder
        self._output = output
        self._pipes = Pipes(processes, output)
        self._limits = limits
        self._silence = [Silence(limits) for _ in processes]
        self._deadlock = DeadlockDetector(folder)
        self._failed: dict[int, float] = {}
        self._stopped: dict[int, float] = {}
        self._introduced = False
        self.best: int | None = None

    def watch(self) -> JobResult:
        """Wait until the job has ended; all processes have ended then, even if this raises."""
        try:
            with JobProgress() as progress:
                return self._watch(progress)
        finally:
            self._end()

    def _watch(self, progress: JobProgress) -> JobResult:
        looked = time.monotonic()
        while True:
            self._wait(_LOOK_EVERY)
            looked, before = time.monotonic(), looked
            self._look(looked - before)  # before reading: what the others say after a failure is not shown
            self._read()
            if self._failed:
                return self._after_failure()
            if not any(process.exit_code is None for process in self._processes):
                return job_result.succeeded(self._processes)
            beats = {process.number: self._folder.beat(process.number) for process in self._processes}
            self.best = max((beat.step for beat in beats.values() if beat and beat.step is not None), default=self.best)
            # The slowest process decides how long a step of the job takes.
            progress.show(beats, max((s for one in self._silence if (s := one.seconds_a_step)), default=None))
            if ended := self._without_progress(beats, looked):
                return ended

    def _wait(self, seconds: float) -> None:
        """Wait for output; while nobody reads what is there already, the processes have to wait with theirs."""
        screen = self._output.screen
        if screen.is_full:
            time.sleep(seconds)
        elif screen.is_empty:
            self._pipes.wait(seconds)
        else:
            self._pipes.wait(min(seconds, 0.02))
        screen.flush()

    def _read(self) -> None:
        if not self._output.screen.is_full:
            self._pipes.read()

    def _look(self, since_last: float) -> None:
        for process in self._processes:
            process.look()
            failure = self._folder.failure(process.number)
            failed = failure or process.exit_code not in (None, 0, *STOPPING)
            if process.number not in self._failed and failed:
                ended = process.ended or time.time()
                self._failed[process.number] = failure.time if failure else ended
                self._output.hold_errors()
        self._look_for_stopped(since_last)
        if not self._introduced:
            self._introduce()

    def _look_for_stopped(self, since_last: float) -> None:
        """Note which processes a signal holds; time in which nobody could work does not count as silence."""
        running = [process.number for process in self._processes if process.exit_code is None]
        held = [number for number in running if is_stopped(self._pid(number))]
        now = time.monotonic()
        self._stopped = {number: self._stopped.get(number, now) for number in held}
        if since_last > _SUSPENDED or (running and held == running):
            for one in self._silence:
                one.pause(since_last)
            self._deadlock.pause(since_last)
            self._stopped = dict.fromkeys(held, now)

    def _pid(self, number: int) -> int:
        return self._folder.pid(number) or self._processes[number].popen.pid

    def _introduce(self) -> None:
        joined = [one for process in self._processes if (one := self._folder.joined(process.number))]
        if len(joined) == len(self._processes):
            self._introduced = True
            self._output.screen.write("stderr", f"{process_table(joined)}\n")

    def _after_failure(self) -> JobResult:
        held = list(self._stopped)  # by somebody, before this one ends them
        since = time.monotonic()
        while any(process.exit_code is None for process in self._processes):
            waited = time.monotonic() - since
            if waited > _STILL_ENDING or (waited > _OTHERS_TOO and (held or self._is_explained())):
                break
            self._wait(0.05)
            self._look(0.0)
            self._read()
        self._end()
        return job_result.after_failure(self._processes, self._failed, self._folder, self._output, held)

    def _is_explained(self) -> bool:
        """Return whether a process has failed by itself, or ended early: others only say that they have lost it."""
        ended_early = any(process.exit_code == 0 for process in self._processes)
        return ended_early or any(
            job_result.is_cause(self._processes[number], self._folder, self._output) for number in self._failed
        )

    def _without_progress(self, beats: Mapping[int, Beat | None], looked: float) -> JobResult | None:
        """Judge by how long nothing had come when this process looked; it may have been held itself since then."""
        last_lines = self._pipes.last_line
        latest = max(last_lines.values(), default=None)
        for number, beat in beats.items():
            # Often only process 0 prints, so a line of any process is a sign of life of those that do not beat.
            self._silence[number].see(beat, last_lines.get(number) if beat else latest)
        finished = [p for p in self._processes if p.exit_code is not None or _is(beats[p.number], FINISHED)]
        others = [p for p in self._processes if p not in finished]
        if ended := self._never_joined(beats):
            return ended
        numbers = [process.number for process in others]
        if self._is_stuck(numbers, looked):
            return self._stuck(others)
        waiting = self._deadlock.waiting(numbers, looked, patience=None if finished else self._limits.together())
        if waiting and not finished:
            return self._stuck(others)
        if waiting:
            self._output.hold_errors()
            self._end()
            return job_result.left_early(self._processes, finished, waiting)
        return None

    def _is_stuck(self, running: Collection[int], looked: float) -> bool:
        together = self._limits.together()
        if any(looked - self._stopped.get(number, looked) > together for number in running):
            return True
        if not any(self._silence[number].is_too_long(looked) for number in running):
            return False
        # Where nobody waits for anybody, all are at work of their own, such as reading data from a slow disk.
        is_for_sure = self._limits.stuck_after is not None or self._deadlock.who_waits(running)
        return bool(is_for_sure) or any(self._silence[number].seconds(looked) > BEFORE_THE_FIRST for number in running)

    def _never_joined(self, beats: Mapping[int, Beat | None]) -> JobResult | None:
        """Return a result if processes have ended well before they joined, while others wait for them there."""
        came = {number for number, beat in beats.items() if beat}
        joining = {number for number in came if _is(beats[number], *JOINING)}
        ended = {process.number for process in self._processes if process.exit_code is not None}
        gone = [process for process in self._processes if process.number in ended - (came - joining)]
        if not gone or not joining - ended:
            return None
        self._output.hold_errors()
        self._end()
        return job_result.never_joined(self._processes, gone)

    def _stuck(self, running: Sequence[Process]) -> JobResult:
        self._output.hold_errors()
        why = {}
        for process in running:
            held = ", held by a signal (SIGSTOP)" if process.number in self._stopped else ""
            why[process.number] = f"{self._silence[process.number]}{held}"
        waiting = self._deadlock.who_waits([process.number for process in running])
        stacks = collect_stacks(self._folder, [process.number for process in running])
        self._end()
        return job_result.stuck(self._processes, why, stacks, waiting)

    def _end(self) -> None:
        end_all(self._processes, self._folder)
        self._pipes.read_rest()


def _is(beat: Beat | None, *doing: str) -> bool:
    return beat is not None and beat.doing in doing


_WIDTH = 160


def process_table(joined: Sequence[JoinedProcess]) -> str:
    """Return a table with one row a process, and below it where the values came from."""
    rows = [[str(one.process), one.host, str(one.pid), _devices(one), one.coordinator] for one in joined]
    columns = ("process", "host", "pid", "devices", "coordinator")
    lines = [to_text(table(columns, rows, right=("process", "pid")), width=_WIDTH)]
    by_origin: dict[str, list[int]] = collections.defaultdict(list)
    for process in joined:
        by_origin[origin_text(process.origin)].append(process.process)
    for origin, processes in by_origin.items():
        of = "" if len(by_origin) == 1 else f" (process {', '.join(map(str, processes))})"
        lines.append(f"{origin}{of}")
    return "\n".join(lines)


def _devices(process: JoinedProcess) -> str:
    kinds = collections.Counter(device["kind"] for device in process.devices)
    ids = ",".join(str(device["id"]) for device in process.devices[:8])
    more = f",... ({len(process.devices)})" if len(process.devices) > 8 else ""
    return " ".join(f"{num} x {kind}" for kind, num in kinds.items()) + f" (ids {ids}{more})"


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
    """Return the process that has finished the fewest steps; of several, the one that finished its last step last."""
    return min(beats, key=lambda number: (beats[number].step or 0, -beats[number].time))
