"""Detect processes that wait for ever in collectives, because others have ended or wait too; their stacks prove it."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Collection
from pathlib import Path

from outlay.jobs.job_folder import Beat, JobFolder, is_after_the_last
from outlay.jobs.proc_files import is_idle, send, waits_at, waits_in_jax

_IDLE_FOR = {"cpu": 1.5}  # seconds in which all remaining processes must wait without a sign of work
_IDLE_FOR_ELSEWHERE = 60.0  # a process whose GPU or TPU works does nothing itself
_CALLBACK = re.compile(r'^  File "[^"]*/jax/_src/', re.MULTILINE)


class DeadlockDetector:
    """Decide whether all remaining processes wait in collectives for others that will never come.

    A process that has taken its last step may work for as long as it likes after the others have ended: it may report,
    upload or evaluate. So evidence is required: each remaining process waits in JAX's compiled code, and none of its
    threads works. Waiting in another library, in Python, or for a callback that runs in Python counts as work.

    Args:
        folder: the folder of the job.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._idle_since = time.monotonic()
        self._waits: dict[int, tuple[Beat | None, str]] = {}

    def pause(self, seconds: float) -> None:
        """Leave out these seconds, in which the launcher itself did not run."""
        self._idle_since += seconds

    def waiting(self, running: Collection[int], moment: float, *, patience: float | None = None) -> dict[int, str]:
        """Return the stacks of the processes by number if all of them wait; empty as long as that is not sure.

        Args:
            running: all processes that have not finished their program.
            moment: of `time.monotonic`, from before this was asked; the caller may have been held since then.
            patience: seconds without any work after which they are taken to wait; None where others have finished.
        """
        pids = {number: self._folder.pid(number) for number in running}
        waits = {number: (self._folder.beat(number), waits_at(pid)) for number, pid in pids.items() if pid}
        # A heartbeat, a wait at another place, or a thread on a core starts the count anew.
        if not running or waits != self._waits or not all(pid and is_idle(pid) for pid in pids.values()):
            self._idle_since, self._waits = time.monotonic(), waits
            return {}
        joined = self._folder.joined(next(iter(running)))
        platform = joined.devices[0]["platform"] if joined and joined.devices else ""
        if patience is not None and platform not in _IDLE_FOR:
            return {}  # a GPU or TPU may be working, which nothing in the process shows
        enough = _IDLE_FOR.get(platform, _IDLE_FOR_ELSEWHERE) if patience is None else patience
        if moment - self._idle_since < enough:
            return {}
        self._idle_since = time.monotonic()
        in_jax = {number: waits_in_jax(pid) for number, pid in pids.items() if pid}
        if not all(
            is_waiting or (is_waiting is None and _steps(waits[number][0])) for number, is_waiting in in_jax.items()
        ):
            return {}
        stacks = collect_stacks(self._folder, running)
        waiting = {number: text for number, text in stacks.items() if waits_for_others(text)}
        return waiting if len(waiting) == len(running) else {}

    def who_waits(self, running: Collection[int]) -> list[int]:
        """Return the processes whose main threads wait in JAX's compiled code now, as for a collective, or may."""
        pids = {number: self._folder.pid(number) for number in running}
        return [number for number, pid in pids.items() if pid and waits_in_jax(pid) is not False]


def _steps(beat: Beat | None) -> bool:
    """Return whether a process says that it takes a step: its wait is a collective then, if its stack is unreadable."""
    return beat is not None and beat.doing.startswith("step ") and not is_after_the_last(beat)


def waits_for_others(stacks: str) -> bool:
    """Return whether the main thread of a process waits outside Python, and no other thread runs a Python callback."""
    others = stacks.strip().split("\n\n")[:-1]
    return waits_outside_python(stacks) and not any(_CALLBACK.search(thread) for thread in others)


_ANSWER_WITHIN = 5.0  # seconds; a process that was stopped on a busy machine needs more than one
_QUIET = 0.5  # seconds without growth after which a file is whole
_LAST = "Current thread "
"""How the part of the thread begins that took the signal, the main thread; faulthandler writes it last."""
_LIBRARY = re.compile(r"/lib/python3[^/]*/(?!site-packages|dist-packages)")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+ in ')


def collect_stacks(folder: JobFolder, processes: Collection[int]) -> dict[int, str]:
    """Ask processes for the Python stacks of all their threads; return those that came, by process.

    Args:
        folder: the folder of the job.
        processes: numbers of running processes. One that has not joined cannot be asked: the signal would kill it.
    """
    pids = {number: pid for number in processes if (pid := folder.pid(number))}
    before = {number: _size(folder.stacks_path(number)) for number in pids}
    for pid in pids.values():
        send(pid, signal.SIGUSR1, folder.mark)
        send(pid, signal.SIGCONT, folder.mark)  # a stopped process cannot answer until it continues
    sizes, grown_at = dict(before), time.monotonic()
    deadline = grown_at + _ANSWER_WITHIN
    while (now := time.monotonic()) < deadline:
        time.sleep(0.02)
        seen = {number: _size(folder.stacks_path(number)) for number in before}
        if seen != sizes:
            sizes, grown_at = seen, now
        if now - grown_at > _QUIET and all(_LAST in _since(folder, number, start) for number, start in before.items()):
            break
    answers = {number: _since(folder, number, start) for number, start in before.items()}
    return {number: text.strip() + "\n" for number, text in answers.items() if text}


def waits_outside_python(stacks: str) -> bool:
    """Return whether the main thread of a process waits in compiled code, and not in Python's own library.

    Python's library waits for locks, queues and other processes. A wait for a collective shows as a frame of JAX, or,
    as in `float(loss)`, as no frame at all: then the last frame is the user's line.
    """
    main = stacks.strip().split("\n\n")[-1]  # faulthandler writes the main thread last
    frames = [match["file"] for match in map(_FRAME.match, main.splitlines()) if match]
    return bool(frames) and not _LIBRARY.search(frames[0])


def _since(folder: JobFolder, number: int, start: int) -> str:
    """Return what a process wrote of its stacks after a position in its file."""
    try:
        return folder.stacks_path(number).read_bytes()[start:].decode(errors="replace")
    except FileNotFoundError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
