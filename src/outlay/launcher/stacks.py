"""The Python stacks of running processes, as each writes them when a signal asks for them."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from pathlib import Path

from outlay.jobs.job_folder import JobFolder
from outlay.jobs.proc_files import send

_ANSWER_WITHIN = 5.0  # seconds; a process that was stopped on a busy machine needs more than one
# Seconds without growth after which a file is whole: a thread that is not the main one may take the signal, and is
# then written first; and on a busy machine the others follow late.
_QUIET = 1.5
_LAST = "Current thread "
"""How the part of the thread begins that took the signal: as a rule the main thread, which faulthandler writes last."""


def collect_stacks(folder: JobFolder, processes: Collection[int]) -> dict[int, str]:
    """Request the Python stacks of all threads of processes; return the stacks received, by process.

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
