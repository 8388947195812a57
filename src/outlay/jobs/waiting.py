"""Whether this process waits, in JAX, for what only another process can bring."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from outlay.jobs.proc_files import waits_in_jax

_BUSY = 0.05  # of a core, above which this process works
_SAMPLE = 0.5  # seconds between two samples: in less, asking is itself the work that is seen
_UNSEEN = 60.0  # seconds that a GPU or TPU may work for one call, without a sign of it in this process
_ELSEWHERE = 300.0  # seconds after which a wait counts that neither a frame nor the native stack shows to be JAX's

_since: tuple[object, float] | None = None
_sampled: tuple[float, float] | None = None  # time, and time on cores
_answer = 0.0
_devices_work_unseen: Callable[[], bool] = bool  # which is False, until somebody knows better


def ask_of_devices(work_unseen: Callable[[], bool]) -> None:
    """From now on, ask this whether devices work without a sign in this process; this module knows nothing of JAX."""
    global _devices_work_unseen
    _devices_work_unseen = work_unseen


def seconds_waiting_in_jax() -> float:
    """For how long this process has waited in one place of JAX without doing anything.

    It has to be asked again and again, and looks once in half a second at most. A callback of a program runs in another
    thread, and what works there is not waited for in vain.
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
    place = (id(main), main.f_lasti)
    if _since is None or _since[0] != place:
        _since = (place, now)
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
