"""What /proc says about a process, and signals that reach only processes of the job; Linux only, else unknown.

A number in a process's own words may be another process's number here: a container counts its own. And a number that
was right may be another process's by now. So processes are known by a mark in their environment, which what they start
inherits.

Run as a program, this file ends all processes of a job when its stdin ends: with the launcher, whatever ended that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

MARK = "_OUTLAY_JOB"
"""The variable with the marks of the jobs that a process is in: more than one where a job's process launches a job."""

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1  # prctl.h
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_RUNNING = {"R", "D"}  # on a core or waiting for one; waiting for a disk


def is_idle() -> bool:
    """Return whether no thread of this process but the calling one wants a core or a disk; True where unknown."""
    own = str(threading.get_native_id())
    return not _RUNNING & {_state(task / "stat") for task in (_PROC / "self/task").glob("*") if task.name != own}


def is_stopped(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP holds a process."""
    return _state(_PROC / str(pid) / "stat") == "T"


def namespace(pid: int | str = "self") -> str:
    """Return the namespace in which a process has its pid, such as that of its container; empty if unknown.

    Two processes may have the same number, each in a namespace of its own.
    """
    try:
        return os.readlink(_PROC / str(pid) / "ns/pid")
    except OSError:
        return ""


def find(mark: str, number_inside: int, of_namespace: str = "") -> int | None:
    """Return the pid here of a process of a job that has another pid in its container; None where there is none.

    Args:
        mark: the mark of the job.
        number_inside: its pid as it sees it itself, such as in a container.
        of_namespace: the namespace of that number; empty if it is not known.
    """
    if not _PROC.joinpath("self").exists():  # not Linux, where nobody counts otherwise
        return number_inside

    def is_it(pid: int) -> bool:
        return _innermost(pid) == number_inside and of_namespace in ("", namespace(pid))

    if is_marked(number_inside, mark) and is_it(number_inside):
        return number_inside
    return next((pid for pid in marked(mark) if is_it(pid)), None)


def marked(mark: str) -> Iterator[int]:
    """Yield the pids of all processes of a job and of their children."""
    for folder in _PROC.glob("[0-9]*"):
        if is_marked(int(folder.name), mark):
            yield int(folder.name)


def is_marked(pid: int, mark: str) -> bool:
    """Return whether a process belongs to a job: the environment that it was started with holds the mark."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    name = f"{MARK}=".encode()
    return any(mark.encode() in one[len(name) :].split() for one in environment.split(b"\0") if one.startswith(name))


def send(pid: int, number: int, mark: str) -> bool:
    """Send a signal to a process of a job, and to no other that has its number by now; whether it was sent."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not hasattr(signal, "pidfd_send_signal"):  # not Linux
            os.kill(pid, number)
            return True
        process = os.pidfd_open(pid)
        try:
            if is_marked(pid, mark):  # of the very process that is open
                signal.pidfd_send_signal(process, number)
                return True
        finally:
            os.close(process)
    return False


def end_marked(mark: str) -> None:
    """End all processes of a job with SIGKILL, and what they start meanwhile."""
    for _ in range(10):
        if not [pid for pid in marked(mark) if not _is_gone(pid) and send(pid, signal.SIGKILL, mark)]:
            return


def _is_gone(pid: int) -> bool:
    return _state(_PROC / str(pid) / "stat") in ("Z", "X", "")


def _innermost(pid: int) -> int:
    """Return the pid of a process in the innermost namespace that it is in."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return pid


def _state(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def die_with_parent() -> None:
    """Kill this process when its parent dies (PR_SET_PDEATHSIG). Linux only; elsewhere nothing changes."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    for stopping in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stopping, signal.SIG_IGN)
    sys.stdin.read()
    end_marked(sys.argv[1])
