"""SIGUSR1 asks a run to save and to end, as SLURM does shortly before the time limit."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from outlay.launch import variables
from outlay.launch.exits import Exit
from outlay.launch.job_folder import JobFolder

STOPPED = 75
"""Exit code of a run that has ended on request and can be continued: `EX_TEMPFAIL`, try again later."""

_is_requested = False
_folder: JobFolder | None = None


class Stopped(Exit):
    """Ends a program with exit code 75, unless it is caught: on request, after its state was saved."""

    def __init__(self, message: str) -> None:
        super().__init__(STOPPED, message)
        self._message = message

    def __str__(self) -> str:
        return self._message


def listen() -> None:
    """From now on, SIGUSR1 asks this process to stop; under `outlay launch`, the same signal to the launcher."""
    global _folder
    if path := os.environ.get(variables.JOB_DIR):
        _folder = JobFolder(Path(path))
        _folder.listen()
    elif threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, _request)


def is_requested() -> bool:
    """Whether this process was asked to stop."""
    return _is_requested or (_folder is not None and _folder.is_asked_to_stop())


def _request(number: int, frame: Any) -> None:
    global _is_requested
    _is_requested = True
