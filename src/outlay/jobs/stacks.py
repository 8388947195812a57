"""Where every process is: the Python stacks of all its threads, on request."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Collection
from pathlib import Path

from outlay.jobs.job_folder import JobFolder
from outlay.jobs.proc_files import send

_PATIENCE = 5.0  # seconds; a process that was stopped on a busy machine needs more than one
_QUIET = 0.5  # seconds without growth after which a file is whole
_LAST = "Current thread "
"""How the part of the thread begins that took the signal, the main thread; faulthandler writes it last."""
_LIBRARY = re.compile(r"/lib/python3[^/]*/(?!site-packages|dist-packages)")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+ in ')


def collect_stacks(folder: JobFolder, processes: Collection[int]) -> dict[int, str]:
    """Ask processes for their stacks; returns the answers of those that answered.

    Args:
        folder: of the job.
        processes: numbers of processes that run. One that has not joined cannot be asked: the signal would end it.
    """
    pids = {number: pid for number in processes if (pid := folder.pid(number))}
    before = {number: _size(folder.stacks_path(number)) for number in pids}
    for pid in pids.values():
        send(pid, signal.SIGUSR1, folder.mark)
        send(pid, signal.SIGCONT, folder.mark)  # a stopped process answers only when it goes on
    sizes, grown_at = dict(before), time.monotonic()
    deadline = grown_at + _PATIENCE
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
    """Whether the main thread of a process waits in compiled code: JAX's, say, but not in Python's own library.

    The library waits for locks, queues and other processes. A wait for a collective can be seen in a frame of JAX, or,
    as in `float(loss)`, in no frame at all: the last one is the user's line.
    """
    main = stacks.strip().split("\n\n")[-1]  # faulthandler writes the main thread last
    frames = [match["file"] for match in map(_FRAME.match, main.splitlines()) if match]
    return bool(frames) and not _LIBRARY.search(frames[0])


def _since(folder: JobFolder, number: int, start: int) -> str:
    """What a process wrote of its stacks after a position in its file."""
    try:
        return folder.stacks_path(number).read_bytes()[start:].decode(errors="replace")
    except FileNotFoundError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
