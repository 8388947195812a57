"""The files that a process has used, and whether they are still the same later.

An answer that was computed from files can be given again as long as none of them has changed. Which files those are is
observed, not declared: what Python opens and lists is reported to an audit hook, imported modules have their files, and
the operating system knows the shared libraries that are loaded.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from outlay.core.user_code import imported_files

State = list[int] | None
"""Of a file or folder: inode, size, and when its content and when itself was last changed, in ns; None without it.

The last of these cannot be set by any program, so that a file that was written to, or replaced, always differs.
"""

_SETTLED = 1.0
"""Seconds: in a file that was changed shortly before it was read, a further change could have the same time."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_READS = ("open", "os.listdir", "os.scandir")
# What these take in is in no file.
_BEYOND = ("socket.connect", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.system", "urllib.Request")
_KERNEL = ("/proc/", "/sys/", "/dev/")


class UsedFiles:
    """Observe, from now on, what this process reads, apart from what lies in some folders.

    Args:
        but: folders that do not count, such as those of caches.

    Attributes:
        is_complete: whether files are all that it used: it has neither connected to a host nor started a process.
    """

    def __init__(self, *, but: Iterable[str]) -> None:
        self.is_complete = True
        self._ignored = (*_KERNEL, *(os.path.join(os.path.abspath(folder), "") for folder in but))
        self._start = time.time()
        self._read: dict[str, None] = {}
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _READS:
            path = os.curdir if arguments[0] is None else arguments[0]
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
            if isinstance(path, (str, bytes, os.PathLike)) and not writes:
                self._note(os.fsdecode(path))
        elif event in _BEYOND:
            self.is_complete = False

    def _note(self, path: str) -> None:
        try:
            self._read[os.path.abspath(path)] = None
        except OSError:  # relative to a folder that has been removed: an error here would be one of whoever reads
            self.is_complete = False

    def states(self, also: Iterable[str] = ()) -> dict[str, State] | None:
        """Return the state of everything that was used; None if it is not known, or not settled.

        Args:
            also: further paths that matter, whether or not something is there.
        """
        libraries = _libraries()
        if not self.is_complete or libraries is None:
            return None
        places = [os.path.abspath(place) for place in (*sys.path, *also)]
        used = [*self._read, *map(os.path.abspath, imported_files()), *libraries, *places]
        # A module that was read as bytecode has its source in the list as well.
        ends, starts = (".pyc", "__pycache__"), self._ignored
        states = {path: state_of(path) for path in used if not (path.endswith(ends) or f"{path}/".startswith(starts))}
        latest = max((max(state[2:]) for state in states.values() if state), default=0)
        return states if latest < (self._start - _SETTLED) * 1e9 else None


def state_of(path: str) -> State:
    """Return the state of a file or folder."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def are_unchanged(states: Mapping[str, State]) -> bool:
    """Return whether everything is as it was."""
    return all(state_of(path) == state for path, state in states.items())


def _libraries() -> list[str] | None:
    """Return the files that are mapped into memory, such as a compiler that was loaded by hand; None if unknown."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            lines = [line.split(maxsplit=5) for line in maps]
    except OSError:
        return None
    return list(dict.fromkeys(line[5].rstrip("\n") for line in lines if len(line) > 5 and line[5].startswith("/")))
