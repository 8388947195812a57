"""Watch the processes of a job until all have ended, by themselves or because something is wrong."""

from __future__ import annotations

import collections
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from rich import progress as bars
from rich.console import Console

from outlay.core.terminal_text import table, to_text
from outlay.jobs.exit_codes import STOPPING
from outlay.jobs.job_folder import FINISHED, Beat, JobFolder, JoinedProcess, Wait
from outlay.jobs.proc_files import is_stopped
from outlay.jobs.process_info import origin_text
from outlay.jobs.stall import Limits, Silence
from outlay.jobs.verdict import Failed, Kind, Patience, ProcessFacts, Verdict, verdict
from outlay.jobs.waiting import NO_WAIT
from outlay.launcher import job_result
from outlay.launcher.console import is_writable
from outlay.launcher.job_result import JobResult
from outlay.launcher.merged_output import MergedOutput
from outlay.launcher.process import Pipes, Process, end_all
from outlay.launcher.stacks import collect_stacks

_LOOK_EVERY = 0.1  # seconds
_SUSPENDED = 3.0  # seconds between two looks after which this process itself did not run
_OTHERS_TOO = 0.4  # seconds after a failure in which others may fail, so that the first can be told from the last
_STILL_ENDING = 5.0  # seconds in which one that others have lost may still be ending: writing a core takes that long
_NO_SAMPLE = 3.0  # seconds without a look of a process at itself, after which nobody knows whether it waits


class Supervisor:
    """Watches the running processes of a job: gathers facts, asks for a verdict, and carries it out.

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
        is_explicit = limits.stuck_after is not None
        self._patience = Patience(_OTHERS_TOO, _STILL_ENDING, limits.together(), is_explicit, slow_exchange=0.0)
        self._silence = [Silence(limits) for _ in processes]
        self._failed: dict[int, Failed] = {}
        self._noticed: dict[int, float] = {}
        self._stopped: dict[int, float] = {}
        self._waits: dict[int, tuple[Wait, float]] = {}
        self._introduced = False
        self.best: int | None = None

    def watch(self) -> JobResult:
        """Wait until the job has ended; all processes have ended then, even if this raises."""
        try:
            with JobProgress() as progress:
                return self._watch(progress)
        finally:
            self._end_processes()

    def _watch(self, progress: JobProgress) -> JobResult:
        looked = time.monotonic()
        while True:
            self._wait(_LOOK_EVERY)
            looked, before = time.monotonic(), looked
            self._poll_processes(looked - before)  # before reading: what the others say after a failure is not shown
            self._read()
            beats = {process.number: self._folder.beat(process.number) for process in self._processes}
            self.best = max((beat.step for beat in beats.values() if beat and beat.step is not None), default=self.best)
            # The slowest process decides how long a step of the job takes.
            progress.show(beats, max((s for one in self._silence if (s := one.seconds_a_step)), default=None))
            facts = self._facts(beats, looked)
            result = verdict(facts, self._patience)
            if result and (result.kind is not Kind.WELL or not any(one.exit_code is None for one in self._processes)):
                return self._carry_out(result, facts)

    def _wait(self, seconds: float) -> None:
        """Wait for output; while nobody reads what is there already, the processes have to wait with theirs."""
        console = self._output.console
        if console.is_full:
            time.sleep(seconds)
        elif console.is_empty:
            self._pipes.wait(seconds)
        else:
            self._pipes.wait(min(seconds, 0.02))
        console.flush()

    def _read(self) -> None:
        if not self._output.console.is_full:
            self._pipes.read()

    def _poll_processes(self, since_last: float) -> None:
        for process in self._processes:
            process.look()
            failure = self._folder.failure(process.number)
            failed = failure or process.exit_code not in (None, 0, *STOPPING)
            if process.number not in self._failed and failed:
                self._failed[process.number] = Failed(failure.time if failure else process.ended or time.time())
                self._noticed[process.number] = time.monotonic()
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
            self._stopped = dict.fromkeys(held, now)

    def _facts(self, beats: Mapping[int, Beat | None], looked: float) -> list[ProcessFacts]:
        """Return what is known at a moment; this process may have been held itself since then."""
        latest = max(self._pipes.last_line.values(), default=None)
        facts = []
        for process in self._processes:
            number, silence, beat = process.number, self._silence[process.number], beats[process.number]
            # Often only process 0 prints, so a line of any process is a sign of life of those that do not beat.
            silence.see(beat, self._pipes.last_line.get(number) if beat else latest)
            failed = self._failed.get(number)
            if failed:
                failed = replace(failed, ago=looked - self._noticed[number], is_echo=self._is_echo(number))
            wait = self._fresh_wait(number, looked) or NO_WAIT
            facts.append(
                ProcessFacts(
                    number,
                    failed=failed,
                    has_exited=process.exit_code in (0, *STOPPING),
                    has_finished=beat is not None and beat.doing == FINISHED,
                    beat=beat,
                    silent=silence.seconds(looked),
                    limit=silence.limit,
                    seconds_a_step=silence.seconds_a_step or 0.0,
                    waits=wait.seconds,
                    in_jax=wait.in_jax,
                    works_unseen=wait.works_unseen,
                    held=max(looked - self._stopped[number], 0.0) if number in self._stopped else None,
                )
            )
        return facts

    def _fresh_wait(self, number: int, looked: float) -> Wait | None:
        """Return for how long a process waits; None where it has not looked at itself for a while."""
        wait = self._folder.wait(number)
        if wait and wait != self._waits.get(number, (None,))[0]:
            self._waits[number] = (wait, time.monotonic())
        last, seen = self._waits.get(number, (None, looked))
        return last if looked - seen < _NO_SAMPLE else None

    def _pid(self, number: int) -> int:
        return self._folder.pid(number) or self._processes[number].popen.pid

    def _introduce(self) -> None:
        joined = [one for process in self._processes if (one := self._folder.joined(process.number))]
        if len(joined) == len(self._processes):
            self._introduced = True
            self._output.console.write("stderr", f"{process_table(joined)}\n")

    def _carry_out(self, result: Verdict, facts: Sequence[ProcessFacts]) -> JobResult:
        """End all processes, and return what there is to say."""
        if result.kind is Kind.WELL:
            return job_result.succeeded(self._processes)
        self._output.hold_errors()
        held = [one.process for one in facts if one.held is not None]  # by somebody, before this one ends them
        running = [one.process for one in facts if one.is_running]
        asks = result.kind in (Kind.STUCK, Kind.LEFT_EARLY)
        stacks = collect_stacks(self._folder, running) if asks else {}
        self._end_processes()
        if result.kind is Kind.FAILED:
            result = verdict(self._read_wholly(facts), replace(self._patience, settle=0.0, echo=0.0)) or result
            return job_result.after_failure(result, self._processes, self._folder, self._output, held)
        if result.kind is Kind.STUCK:
            signal = ", held by a signal (SIGSTOP)"
            why = {number: f"{self._silence[number]}{signal if number in held else ''}" for number in running}
            return job_result.stuck(self._processes, why, stacks, result.waiting)
        early = [self._processes[number] for number in result.culprits]
        if result.kind is Kind.NEVER_JOINED:
            return job_result.never_joined(self._processes, early)
        return job_result.left_early(self._processes, early, stacks)

    def _read_wholly(self, facts: Sequence[ProcessFacts]) -> list[ProcessFacts]:
        """Read the rest of the output of failed processes, and return their facts again."""
        return [
            replace(one, failed=replace(one.failed, is_echo=self._is_echo(one.process))) if one.failed else one
            for one in facts
        ]

    def _is_echo(self, number: int) -> bool:
        return job_result.is_echo_of_another(self._processes[number], self._folder, self._output)

    def _end_processes(self) -> None:
        end_all(self._processes, self._folder)
        self._pipes.read_rest()


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
