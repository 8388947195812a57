"""What this process tells those who watch it: its heartbeats, and for how long it has waited in JAX.

`outlay launch` watches it, or process 0 where there is no launcher.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from outlay.jobs import process_info
from outlay.jobs.job_folder import BEAT_SIZE, Beat, JobFolder, padded
from outlay.jobs.proc_files import waits_in_jax

_file: mmap.mmap | None = None
_last_step: int | None = None
_last_of: int | None = None
_last = Beat(None, 0.0, "")
_listener: Callable[[], object] | None = None
_marks: tuple[int, ...] = ()


def start_beating(folder: JobFolder, process: int) -> None:
    """Write each heartbeat of this process to the job's folder from now on."""
    global _file, _last_step, _last_of, _marks
    path = folder.beat_path(process)
    with contextlib.suppress(OSError):  # no room on the disk: the launcher knows less of this process
        path.write_bytes(b" " * BEAT_SIZE)
        with path.open("r+b") as opened:
            # Mapped into memory: a heartbeat copies 256 bytes, without a call of the system.
            _file = mmap.mmap(opened.fileno(), BEAT_SIZE)
    _last_step = _last_of = None
    _marks = (1, 2) if process_info.IN_ORDER in os.environ else ()  # stdout and stderr


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
    global _file
    _file = None  # a forked worker is not the process that the launcher watches


os.register_at_fork(after_in_child=_forget_in_a_fork)


_BUSY = 0.05  # of a core, above which this process works
_SAMPLE = 0.5  # seconds between two samples: in less, asking is itself the work that is seen
_UNSEEN = 60.0  # seconds that a GPU or TPU may work for one call, without a sign of it in this process
_ELSEWHERE = 300.0  # seconds after which a wait counts that neither a frame nor the native stack shows to be JAX's

_since: tuple[object, float] | None = None
_sampled: tuple[float, float] | None = None  # time, and time on cores
_answer = 0.0
_devices_work_unseen: Callable[[], bool] = bool  # which is False, until somebody knows better


def ask_of_devices(work_unseen: Callable[[], bool]) -> None:
    """Ask a function from now on whether devices work silently in this process; nothing here imports JAX."""
    global _devices_work_unseen
    _devices_work_unseen = work_unseen


def seconds_waiting_in_jax() -> float:
    """Return for how long this process has waited at one line of JAX without doing anything.

    It has to be called again and again, and looks once in half a second at most. A callback of a program runs in
    another thread: as long as one works, the process does not count as waiting.
    """
    global _answer
    if _sampled is None or time.monotonic() - _sampled[0] >= _SAMPLE:
        _answer = _look()
    return _answer


def _look() -> float:
    global _since, _sampled
    now, used = time.monotonic(), time.process_time()
    before, _sampled = _sampled, (now, used)
    frames = sys._current_frames()
    main = frames.pop(threading.main_thread().ident or 0, None)
    jax = _folder_of_jax()
    busy = before is None or (used - before[1]) > _BUSY * (now - before[0])
    if busy or main is None or not jax or any(_is_in(frame, jax) for frame in frames.values()):
        _since = None
        return 0.0
    instruction = (id(main), main.f_lasti)
    if _since is None or _since[0] != instruction:
        _since = (instruction, now)
    seconds = max(now - _since[1] - (_UNSEEN if _devices_work_unseen() else 0.0), 0.0)
    # A program's `float(loss)` waits in JAX's compiled code, and the last frame of Python is the program's own.
    is_in_jax = main.f_code.co_filename.startswith(jax) or waits_in_jax(os.getpid())
    return seconds if is_in_jax else max(seconds - _ELSEWHERE, 0.0)


def _folder_of_jax() -> str:
    module = sys.modules.get("jax")
    return f"{Path(module.__file__).parent}/" if module and module.__file__ else ""


def _is_in(frame: FrameType | None, folder: str) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(folder):
            return True
        frame = frame.f_back
    return False
