"""Signs of life of this process, which `outlay launch` watches."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

from outlay.launch.job_folder import BEAT_SIZE, Beat, JobFolder, padded

_file: mmap.mmap | None = None
_last_step: int | None = None


def start_beating(folder: Path, process: int) -> None:
    """From now on, write each beat of this process to the job's folder."""
    global _file, _last_step
    path = JobFolder(folder).beat_path(process)
    path.write_bytes(b" " * BEAT_SIZE)
    with path.open("r+b") as opened:
        _file = mmap.mmap(opened.fileno(), BEAT_SIZE)
    _last_step = None


def beat(step: int | None, doing: str) -> None:
    """Say that this process is alive, and what it does. Takes microseconds; does nothing outside `outlay launch`.

    A process that has beaten while stepping and then stays silent for much longer than its steps take is stuck: its
    launcher shows where, and ends the job.

    Args:
        step: the step that was just finished, counted from 1; None where no step was, which keeps the last.
        doing: what comes now: `step 13`; or `compiling`, `saving` and the like, which may take any time.

    >>> beat(12, "step 13")
    """
    global _last_step
    if _file is None:
        return
    _last_step = _last_step if step is None else step
    _file[:] = padded(Beat(_last_step, time.time(), doing))


def _forget_in_a_fork() -> None:
    global _file
    _file = None  # a forked worker is not the process that the launcher watches


os.register_at_fork(after_in_child=_forget_in_a_fork)
