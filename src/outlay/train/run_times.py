"""Where the seconds of a run go, and the memory that it takes: added up as it runs, and written about once a second.

The lines of `times.jsonl` are what the page of a run, `outlay runs` and `outlay watch` read.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import jax

COMPILE, INPUT, STEPS, EVALUATE, SAVE, OTHER = "compile", "input", "steps", "evaluate", "save", "other"
PHASES = (STEPS, INPUT, EVALUATE, SAVE, COMPILE, OTHER)
"""What the seconds of a run are spent on; each second counts once, and they add up to all of them."""

FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
"""How a run ends that is not killed."""

_BETWEEN = 1.0  # seconds between two lines


class RunTimes:
    """Add up the seconds of a run by what they are spent on.

    Attributes:
        seconds: the seconds by phase, up to the last change of the phase.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._file: IO[bytes] | None = None
        self._phase: str = OTHER
        self._since = time.perf_counter()
        self._began = time.time()
        self._next = 0.0
        self._step = 0

    def keep_in(self, file: IO[bytes]) -> None:
        """Add lines to a file from now on, which says what happened before too."""
        self._file = file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def begin(self, after: int, of: int) -> None:
        """Write that a run begins, or goes on.

        Args:
            after: the step that it goes on after; 0 for a new run.
            of: its number of steps.
        """
        self._step = after
        memory_of = "device" if _memory_of_devices() is not None else "process"
        about = {"after": after, "of": of, "processes": jax.process_count(), "memory_of": memory_of}
        self._write({"began": round(self._began, 3), **about})

    def spend(self, phase: str) -> str:
        """Count the seconds from now on to a phase; returns the one before."""
        now, before = time.perf_counter(), self._phase
        self.seconds[before] += now - self._since
        self._since, self._phase = now, phase
        return before

    @contextlib.contextmanager
    def spending(self, phase: str) -> Iterator[None]:
        """Count the seconds of this block to a phase."""
        before = self.spend(phase)
        try:
            yield
        finally:
            self.spend(before)

    def move(self, phase: str, seconds: float) -> None:
        """Count seconds that have passed in this phase to another one."""
        self.seconds[self._phase] -= seconds
        self.seconds[phase] += seconds

    def finished(self, step: int) -> None:
        """Note that a step is done; a line is written about once a second."""
        self._step = step
        if self._file is not None and time.perf_counter() >= self._next:
            self.write()

    def write(self, **more: object) -> None:
        """Write a line: the step, the seconds of each phase so far, and the memory in use."""
        self.spend(self._phase)
        self._next = time.perf_counter() + _BETWEEN
        memory = _memory_of_devices()
        seconds = {name: round(spent, 4) for name, spent in self.seconds.items() if spent}
        facts = {"at": round(time.time(), 3), "memory": _memory_of_process() if memory is None else memory, **more}
        self._write({"step": self._step, "seconds": seconds, **facts})

    def _write(self, line: dict[str, object]) -> None:
        if self._file is None:
            return
        # Nobody asked for this file: a full disk must not end a run for it, which its metrics will if they must.
        with contextlib.suppress(OSError):
            self._file.write((json.dumps(line) + "\n").encode())


_current: contextvars.ContextVar[RunTimes] = contextvars.ContextVar("outlay_run_times")


def current_times() -> RunTimes:
    """Return the times of the run that this is in; outside of one, times that nobody reads."""
    return _current.get(None) or RunTimes()


@contextlib.contextmanager
def run_times() -> Iterator[RunTimes]:
    """Add up the times of the run in this block, and write how it ended."""
    times = RunTimes()
    token = _current.set(times)
    try:
        yield times
    except BaseException as error:
        # Ctrl-C, and a request to stop, which is a `SystemExit`.
        times.write(end=FAILED if isinstance(error, Exception) else STOPPED)
        raise
    else:
        times.write(end=FINISHED)
    finally:
        _current.reset(token)
        times.close()


def appended(path: Path) -> IO[bytes]:
    """Open a file for whole lines at its end, behind half a line that a killed run has left; follows no link.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
    return file


def _memory_of_devices() -> int | None:
    """Return the bytes in use on the fullest local device; None where devices do not say."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    return max((each["bytes_in_use"] for each in stats if each and "bytes_in_use" in each), default=None)


def _memory_of_process() -> int | None:
    """Return the bytes of memory that this process holds; None where the system does not say."""
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
