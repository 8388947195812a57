"""Heartbeats of this process, for `outlay launch`, or for process 0 where there is no launcher."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from outlay.jobs import process_info
from outlay.jobs.job_folder import BEAT_SIZE, Beat, JobFolder, Wait, padded

_file: mmap.mmap | None = None
_wait_file: mmap.mmap | None = None
_last_step: int | None = None
_last_of: int | None = None
_last = Beat(None, 0.0, "")
_listener: Callable[[], object] | None = None
_marks: tuple[int, ...] = ()


def start_beating(folder: JobFolder, process: int) -> None:
    """Write each heartbeat of this process to the job's folder from now on, and for how long it waits in JAX."""
    global _file, _wait_file, _last_step, _last_of, _marks
    _file, _wait_file = _mapped(folder.beat_path(process)), _mapped(folder.wait_path(process))
    _last_step = _last_of = None
    _marks = (1, 2) if process_info.IN_ORDER in os.environ else ()  # stdout and stderr


def _mapped(path: Path) -> mmap.mmap | None:
    """Return a file in memory: to overwrite it copies some bytes, without a call of the system."""
    with contextlib.suppress(OSError):  # no room on the disk: the launcher knows less of this process
        path.write_bytes(b" " * BEAT_SIZE)
        with path.open("r+b") as opened:
            return mmap.mmap(opened.fileno(), BEAT_SIZE)
    return None


def write_wait(wait: Wait) -> None:
    """Tell the launcher for how long this process has waited in JAX."""
    if _wait_file is not None:
        _wait_file[:] = padded(wait)


def beat(step: int | None, doing: str, of: int | None = None) -> None:
    """Report that this process is alive, and what it does. Takes microseconds.

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


STEP_MARK = re.compile("\x1eoutlay (\\d+)\x1e")
"""What stands in the output of a process where a step ends: output and beats arrive on different ways."""


def mark(step: int) -> bytes:
    """Return the mark of the end of a step: a line of its own, unless the process was in the middle of one."""
    return b"\x1eoutlay %d\x1e\n" % step


def last_beat() -> Beat:
    """Return the last heartbeat of this process; an empty one before the first."""
    return _last


def report_to(listener: Callable[[], object]) -> None:
    """Call a function at each further heartbeat that is not a step; steps are polled."""
    global _listener
    _listener = listener


def _forget_in_a_fork() -> None:
    global _file, _wait_file
    _file = _wait_file = None  # a forked worker is not the process that the launcher watches


os.register_at_fork(after_in_child=_forget_in_a_fork)
