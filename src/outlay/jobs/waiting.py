"""For how long this process has waited in JAX for others: what its main thread does, and whether anything else works.

Each process looks at itself, by what Python and JAX say of it: nobody else can ask either.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from outlay.jobs.blocking_call import called_by
from outlay.jobs.job_folder import Wait
from outlay.jobs.proc_files import is_idle

_BUSY = 0.05  # of a core, above which this process works
_SAMPLE = 0.5  # seconds between two samples: in less, asking is itself the work that is seen
_UNSEEN = 60.0  # seconds that a GPU or TPU may work for one call, without a sign of it in this process
_JOB_WAITS = str(Path(__file__).with_name("current_job.py"))  # where this process waits at JAX's key-value store

NO_WAIT = Wait(0.0, False, False, 0)
"""What is known before the first look."""


@dataclass(frozen=True)
class Devices:
    """What is asked of JAX, which this file does not import.

    Attributes:
        work_unseen: whether devices compute without a sign of it in this process.
        is_pending: whether something that they were asked for is not there yet.
        is_compiled: whether a value is a function that JAX compiles, or an array.
    """

    work_unseen: Callable[[], bool] = bool
    is_pending: Callable[[], bool] = bool
    is_compiled: Callable[[object], bool] = bool


class Waiting:
    """The wait of this process's main thread, in samples.

    Args:
        devices: how to ask JAX of its devices.
    """

    def __init__(self, devices: Devices | None = None) -> None:
        self._devices = devices or Devices()
        self._at: object = None  # the instruction
        self._since: float | None = None  # when it stood there first, with nothing else at work
        self._sampled: tuple[float, float] | None = None  # time, and time on cores
        self._wait = NO_WAIT

    def sample(self) -> Wait:
        """Return for how long this process has waited at one line for JAX without doing anything.

        It has to be called again and again, and looks once in half a second at most. A callback of a program runs in
        another thread: as long as one works, the process does not count as waiting.
        """
        now = time.monotonic()
        if self._sampled is None or now - self._sampled[0] >= _SAMPLE:
            in_jax, seconds = self._sample_wait(now)
            works_unseen = seconds > 0 and self._devices.work_unseen()
            seconds = max(seconds - works_unseen * _UNSEEN, 0.0)
            self._wait = Wait(seconds, works_unseen, in_jax, self._wait.sample + 1)
        return self._wait

    def _sample_wait(self, now: float) -> tuple[bool, float]:
        """Return whether the main thread stands in JAX, and for how long, with nothing else at work."""
        used = time.process_time()
        before, self._sampled = self._sampled, (now, used)
        frames = sys._current_frames()
        main = frames.pop(threading.main_thread().ident or 0, None)
        jax = _folder_of_jax()
        at, self._at = self._at, _instruction(main) if main else None
        if main is None or not jax or at != self._at or not self._is_for_jax(main, jax):
            self._since = None
            return False, 0.0
        busy = before is None or (used - before[1]) > _BUSY * (now - before[0])
        if busy or any(_is_in(frame, jax) for frame in frames.values()) or not is_idle():
            self._since = None
            return True, 0.0
        self._since = self._since or now
        return True, now - self._since

    def _is_for_jax(self, main: FrameType, jax: str) -> bool:
        """Return whether the main thread waits in JAX, or in other compiled code while JAX owes it a value.

        Where the last frame of Python is the program's own, it may wait for a collective or for an upload. What it
        calls tells them apart, or what it has asked its devices for: idle, they have computed all that they can alone.
        """
        file = main.f_code.co_filename
        if file.startswith(jax) or file == _JOB_WAITS:
            return True
        is_pythons = file.startswith(_STANDARD_LIBRARY) and "-packages/" not in file
        if is_pythons or _is_in(main.f_back, jax):
            return False
        with contextlib.suppress(Exception):  # a value of the program may be anything, and must not end the watch
            return any(map(self._devices.is_compiled, called_by(main))) or self._devices.is_pending()
        return False


_STANDARD_LIBRARY = (str(Path(threading.__file__).parent), "<frozen ")


def _instruction(frame: FrameType) -> object:
    """Return what is the same as long as a frame stands at one instruction."""
    return id(frame), frame.f_lasti


def _folder_of_jax() -> str:
    module = sys.modules.get("jax")
    return f"{Path(module.__file__).parent}/" if module and module.__file__ else ""


def _is_in(frame: FrameType | None, folder: str) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(folder):
            return True
        frame = frame.f_back
    return False
