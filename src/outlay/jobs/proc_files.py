"""What /proc says about a process, and signals that reach only processes of the job; Linux only, else unknown.

A number in a process's own words may be another process's number here: a container counts its own. And a number that
was right may be another process's by now. So processes are known by a mark in their environment, which what they start
inherits.

Run as a program, this file ends all processes of a job when its stdin ends: with the launcher, whatever ended that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

MARK = "_OUTLAY_JOB"
"""The variable with the marks of the jobs that a process is in: more than one where a job's process launches a job."""

_PROC = Path("/proc")
_RUNNING = {"R", "D"}  # on a core or waiting for one; waiting for a disk
_STACK = 1 << 16  # bytes of a stack that are looked at
_IN_PYTHON = 3  # addresses in a row that are the interpreter's, and so a frame of Python
_BELOW_ALL = ("libc.", "libc-", "libpthread", "ld-", "libstdc++", "libgcc", "libm.", "[vdso]")
_ACCELERATED = ("jaxlib", "jax_plugins", "libjax", "xla", "libtpu", "cuda", "nccl", "rocm", "rccl")


def is_idle(pid: int) -> bool:
    """Return whether every thread of a process waits for something other than a core or a disk; False if unknown."""
    states = [_state(stat) for stat in (_PROC / str(pid) / "task").glob("*/stat")]
    return bool(states) and not _RUNNING & set(states)


def is_stopped(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP holds a process."""
    return _state(_PROC / str(pid) / "stat") == "T"


def waits_at(pid: int) -> str:
    """Return the system call in which the main thread of a process waits, with its arguments and the program counter.

    The same text twice means the same wait; empty where unknown.
    """
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "task" / str(pid) / "syscall").read_text().strip()
    return ""


def waits_in_jax(pid: int) -> bool | None:
    """Return whether the main thread of a process waits for another thread in JAX's compiled code; None if unknown.

    Its stack tells: of the addresses of code between the wait and Python, most are in JAX's library. Not the innermost
    one alone: what was left there by an earlier call, or half of it beside another value, may look like an address. A
    wait for a collective is one; a wait in another library, such as for an upload, is none, and neither is one in
    Python.
    """
    try:
        wait = waits_at(pid).split()
        if "futex" not in (_PROC / str(pid) / "wchan").read_text() or wait == ["running"]:
            return False
        top = int(wait[-2], 16)
        code: list[tuple[int, int, str]] = []
        end = top
        for line in (_PROC / str(pid) / "maps").read_text().splitlines():
            addresses, access, *_, name = line.split(None, 5)
            first, last = (int(address, 16) for address in addresses.split("-"))
            if first <= top < last:
                end = last
            elif "x" in access and not name.rpartition("/")[2].startswith(_BELOW_ALL):
                code.append((first, last, name))
        with (_PROC / str(pid) / "mem").open("rb") as memory:
            memory.seek(top)
            stack = memory.read(min(end - top, _STACK))
    except (OSError, ValueError, IndexError):
        return None
    words = (word for (word,) in struct.iter_unpack("=Q", stack[: len(stack) // 8 * 8]))
    return _most_are_in_jax(name for word in words for first, last, name in code if first <= word < last)


def _most_are_in_jax(files: Iterable[str]) -> bool | None:
    """Return whether most addresses before the first frames of Python are in JAX's library; None if there are none.

    Args:
        files: what each address of the stack is in, innermost first.
    """
    above: list[str] = []
    for file in files:
        above.append(file)
        if len(above) >= _IN_PYTHON and all(map(_is_python, above[-_IN_PYTHON:])):
            break
    if not above:
        return None
    libraries = [file for file in above if not _is_python(file)]
    return 2 * sum(map(_is_jax, libraries)) > len(libraries)


def _is_jax(file: str) -> bool:
    """Return whether a library is JAX's or an accelerator's, by its package and its name, not by where they lie."""
    _, is_package, inside = file.rpartition("-packages/")
    return any(part in (inside if is_package else "/".join(file.split("/")[-2:])) for part in _ACCELERATED)


def _is_python(file: str) -> bool:
    return file.rpartition("/")[2].startswith(("libpython", "python"))


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
    """Yield the pids of all processes of a job, and of those that they started."""
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


if __name__ == "__main__":
    for stopping in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(stopping, signal.SIG_IGN)
    sys.stdin.read()
    end_marked(sys.argv[1])
