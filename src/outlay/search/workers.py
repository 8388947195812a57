"""Run jobs in processes of their own: several at a time, each with a time limit; all end with the search.

Nothing here imports JAX: the command line reads for its help how much a search spends by default.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outlay.core.runtime_flags import num_cores

NUM_CANDIDATES = 12
TIMEOUT = 300.0
"""Seconds that pricing one candidate may take."""

_BYTES_EACH = 4 * 2**30  # the most that tracing and compiling a large step takes, by experience
_MOST = 4
_NUM_LAST_LINES = 4  # of what a process that failed has printed


def default_processes() -> int:
    """Return as many processes as there are cores and memory for, at most 4."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(_MOST, num_cores(), memory // _BYTES_EACH))


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        answer: its answer; None unless it ended well.
        failure: why there is no answer, in words.
        timed_out: whether it was stopped because it took too long.
        seconds: how long it took.
    """

    answer: dict[str, Any] | None
    failure: str
    timed_out: bool
    seconds: float


class Workers:
    """Processes that answer one job each: a command that gets the job as JSON and prints an answer as JSON.

    Args:
        command: the command; the job is added as its last argument.
        num_processes: how many run at a time, which share the cores.
        timeout: seconds allowed for each.
    """

    def __init__(self, command: Sequence[str], num_processes: int, timeout: float) -> None:
        self._command = tuple(command)
        self._timeout = timeout
        self._environment = _environment(num_processes)
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def answer(self, job: dict[str, Any]) -> Ended:
        """Run one job to its end; call it from several threads for several at a time."""
        start = time.monotonic()
        process = self._start(job)
        try:
            output, errors = process.communicate(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            seconds = time.monotonic() - start
            return Ended(None, f"stopped after {self._timeout:g} s", True, seconds)
        finally:
            with self._lock:
                self._running.discard(process)
        seconds = time.monotonic() - start
        if process.returncode == 0:
            return Ended(json.loads(output), "", False, seconds)
        return Ended(None, _why(process.returncode, errors), False, seconds)

    def stop(self) -> None:
        """Stop all running workers, and start no further ones."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)

    def _start(self, job: dict[str, Any]) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise RuntimeError("no job starts after stop()")
            process = subprocess.Popen(
                [*self._command, json.dumps(job)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C reaches this process only, which ends the others
            )
            self._running.add(process)
            return process


def _environment(num_processes: int) -> dict[str, str]:
    """Return the environment of a process: no accelerator, its share of the cores, this process's modules."""
    threads = str(max(1, num_cores() // num_processes))
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "NPROC": threads,  # XLA takes the size of its thread pools from it
        "OMP_NUM_THREADS": threads,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }


def _why(code: int, errors: str) -> str:
    """Return the message of a process that failed; its first line is the most telling one."""
    last = _raised(errors) or [line.strip() for line in errors.splitlines() if line.strip()]
    text = "\n".join(last[-_NUM_LAST_LINES:])
    if code >= 0:
        return text or f"it ended with exit code {code} and said nothing"
    what = f"killed by {signal.Signals(-code).name}"
    hint = ": this machine may be out of memory; try --processes 1" if -code == signal.SIGKILL else ""
    return f"{what}{hint}\n{text}".rstrip()


def _raised(errors: str) -> list[str]:
    """Return the exception at the end of a text, then the place that raised it; nothing without a traceback."""
    _, separator, traceback = errors.rpartition("Traceback (most recent call last):\n")
    lines = [line for line in traceback.splitlines() if line.strip()] if separator else []
    # The lines of the stack are indented, the exception is not.
    begin = next((number for number, line in enumerate(lines) if not line.startswith(" ")), len(lines))
    lines_of_code = [line.strip() for line in lines[:begin] if line.startswith("  File ")]
    return [*lines[begin:][: _NUM_LAST_LINES - 1], *lines_of_code[-1:]] if lines[begin:] else []


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended by itself
        os.killpg(process.pid, signal.SIGKILL)
