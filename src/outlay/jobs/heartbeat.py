"""Signs of life of this process, which `outlay launch` watches, or process 0 where there is no launcher."""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from outlay.jobs import variables
from outlay.jobs.job_folder import BEAT_SIZE, Beat, JobFolder, padded
from outlay.jobs.step_order import mark

_file: mmap.mmap | None = None
_last_step: int | None = None
_last_of: int | None = None
_last = Beat(None, 0.0, "")
_listener: Callable[[], object] | None = None
_marks: tuple[int, ...] = ()


def start_beating(folder: Path, process: int) -> None:
    """From now on, write each beat of this process to the job's folder."""
    global _file, _last_step, _last_of, _marks
    path = JobFolder(folder).beat_path(process)
    with contextlib.suppress(OSError):  # no room on the disk: the launcher knows less of this process
        path.write_bytes(b" " * BEAT_SIZE)
        with path.open("r+b") as opened:
            _file = mmap.mmap(opened.fileno(), BEAT_SIZE)
    _last_step = _last_of = None
    _marks = (1, 2) if variables.IN_ORDER in os.environ else ()  # stdout and stderr


def beat(step: int | None, doing: str, of: int | None = None) -> None:
    """Say that this process is alive, and what it does. Takes microseconds.

    A process that has beaten while stepping and then stays silent for much longer than its steps take is stuck: its
    launcher, or without one process 0, shows where, and ends the job.

    Args:
        step: the step that was just finished, counted from 1; None where no step was, which keeps the last.
        doing: what comes now: `step 13`; or `compiling`, `saving` and the like, which may take any time.
        of: how many steps there are in all; None where that is not known, which keeps the last.

    >>> beat(12, "step 13")
    """
    global _last_step, _last_of, _last
    _last_step = _last_step if step is None else step
    _last_of = _last_of if of is None else of
    _last = Beat(_last_step, time.time(), doing, _last_of)
    if _listener and (step is None or step == _last_of):
        _listener()
    if _file is None:
        return
    _file[:] = padded(_last)
    if step is not None:
        for stream in _marks:
            os.write(stream, mark(step))


def last_beat() -> Beat:
    """The last beat of this process; before the first, one that says nothing."""
    return _last


def report_to(listener: Callable[[], object]) -> None:
    """Call this when this process does something else than stepping from now on; steps are looked at now and then."""
    global _listener
    _listener = listener


def _forget_in_a_fork() -> None:
    global _file
    _file = None  # a forked worker is not the process that the launcher watches


os.register_at_fork(after_in_child=_forget_in_a_fork)
