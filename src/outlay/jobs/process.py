"""The processes of a job, as their launcher sees them: each leads a session, and ends with all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from outlay.jobs import proc_files
from outlay.jobs.job_folder import JobFolder

_PR_SET_PDEATHSIG = 1  # prctl.h
_PATIENCE = 0.8  # seconds between asking a process to end and ending it
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Process:
    """A running command, with pipes from its stdout and stderr.

    Attributes:
        number: its number in the job.
        popen: the process itself, leader of its session and process group.
        exit_code: None while it runs; negative where a signal ended it.
        ended: when it was first seen to have ended, in seconds since the epoch.
    """

    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.number = number
        self.exit_code: int | None = None
        self.ended: float | None = None
        launcher = os.getpid()

        def end_with_launcher() -> None:
            if _LIBC is not None:
                _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != launcher:  # it ended before the line above
                    os._exit(1)

        self.popen = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to the launcher alone, and one signal reaches all that this started
            preexec_fn=end_with_launcher,  # the launcher has one thread, so running Python here is safe
        )

    def look(self) -> bool:
        """Whether it runs still. What an ended process leaves running is ended too."""
        if self.exit_code is None:
            self.exit_code = self.popen.poll()
            if self.exit_code is not None:
                self.ended = time.time()
                self.signal(signal.SIGKILL)
        return self.exit_code is None

    def signal(self, number: int) -> None:
        """Send a signal to it and to all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all gone; macOS calls zombies not permitted
            os.killpg(self.popen.pid, number)


def die_with_parent() -> None:
    """Have this process killed when the one that started it ends. Linux only; elsewhere nothing changes."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def guarded(mark: str) -> Iterator[None]:
    """Have all processes of a job end with this block, or with this process, were it killed. Linux only.

    What a process started in a session of its own is not reached by a signal to its group, and nothing but another
    process outlives SIGKILL.

    Args:
        mark: of the job.
    """
    if _LIBC is None:
        yield
        return
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", proc_files.__file__, mark],
        stdin=subprocess.PIPE,  # ends with this process
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # so that a signal to the launcher's group does not end it too
    )
    try:
        yield
    finally:
        proc_files.end_marked(mark)
        guard.kill()
        guard.communicate()


def end_all(processes: Iterable[Process], folder: JobFolder) -> None:
    """End all processes in about a second: ask with SIGTERM, then SIGKILL.

    Args:
        processes: of a job.
        folder: of the job, where it is told that they are to end, and not to save.
    """
    running = [process for process in processes if process.look()]
    if running:
        folder.mark_ending()
    for process in running:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # a stopped process takes note of SIGTERM only when it goes on
    deadline = time.monotonic() + _PATIENCE
    while any(process.look() for process in running) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in running:
        if process.look():
            process.signal(signal.SIGKILL)
            process.popen.wait()
            process.look()
