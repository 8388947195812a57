"""Run a job: start its processes, watch them, and start them again where that is wanted."""

from __future__ import annotations

import contextlib
import errno
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from outlay.core.errors import LaunchError
from outlay.launch.ending import Ending
from outlay.launch.free_port import free_port
from outlay.launch.job import Job
from outlay.launch.job_folder import JobFolder
from outlay.launch.merged_output import MergedOutput
from outlay.launch.process import Process, end_all
from outlay.launch.supervise import Supervisor

_NO_ROOM = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # for another process
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Stopped(BaseException):
    """Somebody stops the launcher."""


def run_job(job: Job) -> int:
    """Run a job to its end; output goes to stdout and stderr as it comes.

    Returns:
        The exit code to end with: 0, that of the first process that failed, or 128 and a signal's number.

    Raises:
        LaunchError: the command cannot be run.
    """
    folder = JobFolder(Path(tempfile.mkdtemp(prefix="outlay-job-")))  # which the user alone can read
    keep = False
    try:
        for restart in range(job.max_restarts + 1):
            if restart:
                print(f"\nrestart {restart} of {job.max_restarts}", file=sys.stderr, flush=True)
                folder.clear()
            ending = _attempt(job, folder, restart)
            if ending.text:
                print(ending.text.rstrip("\n"), file=sys.stderr, flush=True)
            keep = keep or ending.is_failure
            if not ending.is_failure:
                break
        return ending.exit_code
    finally:
        if not keep:
            shutil.rmtree(folder.path, ignore_errors=True)


def _attempt(job: Job, folder: JobFolder, restart: int) -> Ending:
    port = job.port or free_port()
    output = MergedOutput(job.num_processes, folder.output_path, in_order=job.in_order)
    processes: list[Process] = []
    try:
        with _signals_raise():
            for number in range(job.num_processes):
                environment = job.environment(number, port, folder.path, restart)
                processes.append(Process(number, job.command, environment))
            return Supervisor(processes, folder, output, job.stuck_after).watch()
    except _Stopped as stop:
        number = stop.args[0]
        return Ending(128 + number, f"stopped by {signal.Signals(number).name}: all processes ended", is_failure=False)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise LaunchError(
                f"process {len(processes)} of {job.num_processes} cannot be started: {error.strerror}\n  cure: fewer "
                "processes, or a higher limit (ulimit -u for processes)"
            ) from error
        raise LaunchError(f"{job.command[0]} cannot be run: {error.strerror}") from error
    finally:
        end_all(processes)
        output.close()


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Have the first signal that stops the launcher raise; later ones change nothing, ending takes a second anyway."""
    handlers = {number: signal.getsignal(number) for number in _STOPPING}
    wanted = [number for number, handler in handlers.items() if handler is not signal.SIG_IGN]  # as under nohup

    def stop(number: int, _: object) -> None:
        for other in wanted:
            signal.signal(other, signal.SIG_IGN)
        raise _Stopped(number)

    for number in wanted:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in wanted:
            signal.signal(number, handlers[number])
