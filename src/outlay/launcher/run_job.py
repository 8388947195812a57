"""Run a job: start its processes, watch them, and restart them after a failure if asked."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeVar

from outlay.core.error_types import JoinError, LaunchError
from outlay.core.output_file import raising
from outlay.core.quantities import counted
from outlay.jobs.exit_codes import STOPPING, TERMINATED
from outlay.jobs.job_folder import Flag, JobFolder, new_job_folder
from outlay.jobs.process_info import read_process_info
from outlay.launcher.console import OutputClosed, OutputConsole
from outlay.launcher.job import Job, free_port
from outlay.launcher.job_result import JobResult
from outlay.launcher.merged_output import MergedOutput
from outlay.launcher.process import Process, end_all, killing_leftovers
from outlay.launcher.supervise import Supervisor

_NO_ROOM = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # for another process
_MORE_PROCESSES = "start fewer processes, or raise the limit (ulimit -u for processes)"
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TO_SAVE = 25  # seconds after SIGTERM to save the state; SLURM and Kubernetes often send SIGKILL after 30
_TO_READ = 3.0  # seconds in which a reader must take some of the rest after a failure, or it is dropped
_IN_VAIN = 2  # restarts without a new step, after which another one would not help either
_LONGEST_PAUSE = 60.0


class _Stopped(BaseException):
    """Somebody stops the launcher."""


def run_job(job: Job) -> int:
    """Run a job to its end, and show its output as it comes.

    SIGUSR1 asks the program to save its state and to end with exit code 75; SIGTERM asks the same, with exit code 143,
    where the program listens for it, as `outlay.fit` with checkpoints does. Other signals that stop the launcher end
    all processes at once.

    Returns:
        The exit code to end with: 0, that of the first process that failed, or 128 plus the signal's number.

    Raises:
        LaunchError: the command cannot be run.
    """
    console = OutputConsole()
    if text := launchers_beside(job.num_processes, os.environ):
        console.write("stderr", text)
    with _folder() as folder, _signals(job, folder, console) as signals:
        result: JobResult | None = None
        keep = False
        try:
            with _killing_leftovers(folder):
                result, keep = _with_restarts(job, folder, console, signals)
            if signals.asked == signal.SIGTERM and result.exit_code in STOPPING:
                result = JobResult(
                    TERMINATED, "stopped by SIGTERM: the state is saved, all processes ended", is_failure=False
                )
            _show(console, result)
            if not console.finish(_TO_READ if result.is_failure else None):
                console.drop(f"nobody reads the rest of the output; it is in {folder.output_path}")
        except _Stopped as stop:
            name = signal.Signals(stop.args[0]).name
            result = JobResult(128 + stop.args[0], f"stopped by {name}: all processes ended", is_failure=False)
            _show(console, result)
            console.finish(_TO_READ / 3)
        except OutputClosed:
            if result is None:  # whoever read had enough: as the system ends a program then
                text = "stopped: the reader of the output has gone; all processes ended"
                result = JobResult(128 + signal.SIGPIPE, text, is_failure=False)
                _show(console, result)
        finally:
            if not keep:
                shutil.rmtree(folder.path, ignore_errors=True)
    return result.exit_code


def launchers_beside(num_processes: int, environment: Mapping[str, str]) -> str:
    """Return a note if `srun` or `mpirun` has started this launcher several times; empty if it is the only one.

    That may be meant, as for a sweep. Whoever meant one job would train as many models instead, and not notice.

    Args:
        num_processes: the number of processes of the job that this launcher runs.
        environment: the launcher's variables.
    """
    try:
        info = read_process_info(environment)
    except JoinError:
        return ""
    if info is None or not info.job or info.num_processes == 1 or info.process:
        return ""
    return (
        f"note: this launcher runs {info.num_processes} times at once ({info.origin['number of processes']}), each "
        f"with a job of its own of {counted(num_processes, 'process', 'processes')}\n"
        "  for one job of all of them: have srun or mpirun start the program itself, as in srun python train.py\n"
    )


T = TypeVar("T")


@contextlib.contextmanager
def _entered(context: AbstractContextManager[T], failed: str, fix: str) -> Iterator[T]:
    """Enter a context whose beginning may be refused by the system, which then is an error of the launcher's.

    Args:
        context: the context.
        failed: what could not be done; the message begins with it.
        fix: what to do about it.
    """
    with contextlib.ExitStack() as stack:
        with raising(lambda why: LaunchError(f"{failed}: {why}\n  fix: {fix}")):
            value = stack.enter_context(context)
        yield value


def _folder() -> AbstractContextManager[JobFolder]:
    # Python's name for the folder is asked for nowhere: where none can be written, that raises.
    failed = f"the launcher cannot write its own files to {os.environ.get('TMPDIR') or 'a temporary folder'}"
    return _entered(new_job_folder(), failed, "set TMPDIR to a writable folder with free space")


def _show(console: OutputConsole, result: JobResult) -> None:
    if result.text:
        console.write("stderr", result.text.rstrip("\n") + "\n")


@dataclass
class _Signals:
    """What signals have asked for.

    Attributes:
        asked: the signal by which the program was asked to save and to end; None where it was not.
    """

    asked: int | None = None


def _with_restarts(job: Job, folder: JobFolder, console: OutputConsole, signals: _Signals) -> tuple[JobResult, bool]:
    """Run the job, with restarts; return its last result, and whether there was a failure."""
    best: int | None = None
    in_vain = 0
    for restart in range(job.max_restarts + 1):
        result, step = _attempt(job, folder, console, restart)
        if not result.is_failure or restart == job.max_restarts or signals.asked:
            break
        is_further = best is None or (step is not None and step > best)
        in_vain = 0 if restart == 0 or (is_further and step is not None) else in_vain + 1
        best = step if is_further else best
        if best is not None and in_vain == _IN_VAIN:
            text = f"no step after {best} was taken in {_IN_VAIN} restarts, so another would not help\n"
            result = replace(result, text=f"{result.text.rstrip()}\n{text}")
            break
        pause = min(2.0 ** (in_vain - 1), _LONGEST_PAUSE) if in_vain else 0.0
        _show(console, result)
        after = f", in {pause:g} s" if pause else ""
        console.write("stderr", f"\nrestart {restart + 1} of {job.max_restarts}{after}\n")
        time.sleep(pause)
        # What the failed start wrote about itself would be taken for the next one's.
        folder.clear()
    return result, result.is_failure or restart > 0


def _attempt(job: Job, folder: JobFolder, console: OutputConsole, restart: int) -> tuple[JobResult, int | None]:
    """Start all processes once; return how they ended, and the last step that one of them finished."""
    port = job.port or free_port()
    output = MergedOutput(job.num_processes, folder.output_path, console, in_order=job.in_order)
    processes: list[Process] = []
    try:
        for number in range(job.num_processes):
            environment = job.environment(number, port, folder, restart)
            try:
                processes.append(Process(number, job.command, environment))
            except OSError as error:
                raise _cannot_start(job, number, error) from error
        supervisor = Supervisor(processes, folder, output, job.limits)
        return supervisor.watch(), supervisor.best
    finally:
        end_all(processes, folder)
        output.close()


def _killing_leftovers(folder: JobFolder) -> AbstractContextManager[None]:
    failed = "the process that cleans up after a job cannot be started"
    return _entered(killing_leftovers(folder.mark), failed, _MORE_PROCESSES)


def _cannot_start(job: Job, number: int, error: OSError) -> LaunchError:
    if error.errno not in _NO_ROOM:
        fix = "check the name after --, and that it may be executed"
        return LaunchError(f"{job.command[0]} cannot be run: {error.strerror}\n  fix: {fix}")
    return LaunchError(
        f"process {number} of {job.num_processes} cannot be started: {error.strerror}\n  fix: {_MORE_PROCESSES}"
    )


@contextlib.contextmanager
def _signals(job: Job, folder: JobFolder, console: OutputConsole) -> Iterator[_Signals]:
    """Take SIGUSR1 and SIGTERM as requests to save within the block; any other signal that stops the launcher raises.

    Only the first counts: ending takes a second anyway.
    """
    handlers = {number: signal.getsignal(number) for number in (*_STOPPING, signal.SIGUSR1, signal.SIGALRM)}
    handled = [number for number, handler in handlers.items() if handler is not signal.SIG_IGN]  # as under nohup
    signals = _Signals()

    def stop(number: int, _: object) -> None:
        beats = (folder.beat(process) for process in range(job.num_processes))
        can_save = folder.has(Flag.LISTENS) and any(beat and beat.step is not None for beat in beats)
        # A second SIGTERM means now, and so does the first if nothing can be saved yet.
        if number == signal.SIGTERM and can_save and signals.asked != signal.SIGTERM:
            signals.asked = signal.SIGTERM
            folder.set(Flag.STOP)
            console.later(f"SIGTERM: the program has {_TO_SAVE} s to save its state\n")
            # Whoever sent SIGTERM soon sends SIGKILL, which would leave the processes of the job behind.
            signal.alarm(_TO_SAVE)
            return
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        raise _Stopped(signal.SIGTERM if number == signal.SIGALRM else number)

    def ask(number: int, _: object) -> None:
        signals.asked = signals.asked or number
        folder.set(Flag.STOP)
        when = "" if folder.has(Flag.LISTENS) else ", as soon as it trains with checkpoints"
        console.later(f"SIGUSR1: the program is asked to save its state and to end{when}\n")

    for number in handled:
        signal.signal(number, ask if number == signal.SIGUSR1 else stop)
    try:
        yield signals
    finally:
        signal.alarm(0)
        for number in handled:
            signal.signal(number, handlers[number])
