"""Requests to save and to end, by a signal: SIGUSR1, as SLURM sends it before the time limit, or SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from outlay.jobs.exit_codes import STOPPED, TERMINATED, NoticedExit
from outlay.jobs.job_folder import Flag, JobFolder, own_job_folder

_is_requested = False
_folder: JobFolder | None = None
_exit_code = STOPPED


class Stopped(NoticedExit):
    """Ends a program, unless it is caught: on request, after its state was saved.

    Args:
        message: what to print.
        exit_code: `STOPPED` or `TERMINATED`.
    """

    def __init__(self, message: str, exit_code: int = STOPPED) -> None:
        super().__init__(exit_code)
        self._message = message

    def __str__(self) -> str:
        return self._message


def listen() -> None:
    """Let SIGUSR1 ask this process to stop from now on; under `outlay launch`, SIGUSR1 to the launcher does."""
    global _folder
    if _folder := own_job_folder():
        with contextlib.suppress(OSError):  # a full disk: the launcher does not know that this process could save
            _folder.set(Flag.LISTENS)
    elif threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, _request)


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Take SIGTERM as a request too within the block; a second one ends the process at once, as the first does outside.

    `scancel` sends it to all processes of a job step, the launcher included. SIGTERM from a launcher that ends the job
    is not a request. A handler that the program has set already stays.
    """
    listen()
    can = threading.current_thread() is threading.main_thread()
    if not can or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _request)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def is_requested() -> bool:
    """Return whether this process was asked to stop."""
    return _is_requested or (_folder is not None and _folder.has(Flag.STOP))


def exit_code() -> int:
    """Return the exit code of a run that stops: as the signal asks, or as all processes have agreed."""
    return _exit_code


def agree_on(exit_code: int) -> None:
    """Set the exit code of a run that stops, whatever signal this process itself has received."""
    global _exit_code
    _exit_code = exit_code


def _request(number: int, frame: FrameType | None) -> None:
    global _is_requested
    if number == signal.SIGTERM:
        if (_is_requested and _exit_code == TERMINATED) or (_folder is not None and _folder.has(Flag.ENDING)):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        agree_on(TERMINATED)
    _is_requested = True
