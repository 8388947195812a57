"""SIGUSR1 asks a run to save and to end, as SLURM does shortly before the time limit."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from outlay.launch import variables
from outlay.launch.exits import Exit

STOPPED = 75
"""Exit code of a run that has ended on request and can be continued: `EX_TEMPFAIL`, try again later."""

_is_requested = False


class Stopped(Exit):
    """Ends a program with exit code 75, unless it is caught: on request, after its state was saved."""

    def __init__(self, message: str) -> None:
        super().__init__(STOPPED, message)
        self._message = message

    def __str__(self) -> str:
        return self._message


def listen() -> None:
    """From now on, SIGUSR1 asks this process to stop; not under `outlay launch`, which asks for stacks by it."""
    if variables.JOB_DIR not in os.environ and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, _request)


def is_requested() -> bool:
    """Whether this process was asked to stop."""
    return _is_requested


def _request(number: int, frame: Any) -> None:
    global _is_requested
    _is_requested = True
