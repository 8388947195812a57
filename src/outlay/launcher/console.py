"""The launcher's stdout and stderr, written without blocking on a slow reader.

A terminal that Ctrl-S holds, or a `tee` that hangs, must not keep the launcher from seeing that a process has died. So
text waits here, and goes out as it is taken.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import stat
import sys
import time
from typing import IO, Literal

Stream = Literal["stdout", "stderr"]

_MOST = 1 << 20  # characters that wait, before the processes are made to wait
_PIECE = 1024  # characters; up to 4096 bytes, which a pipe takes as a whole or not at all


class OutputClosed(BaseException):
    """Raised when the reader of stdout has closed it, as after `| head`."""


class OutputConsole:
    """Text on its way to stdout and stderr."""

    def __init__(self) -> None:
        self._waiting = {"stdout": collections.deque[str](), "stderr": collections.deque[str]()}
        self._size = 0
        self._later = collections.deque[str]()
        self._is_lost: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Whether so much waits that no more should be read from the processes."""
        return self._size > _MOST

    @property
    def is_empty(self) -> bool:
        """Whether all has gone out."""
        return self._size == 0

    def write(self, stream: Stream, text: str) -> None:
        """Show text now, or as soon as it is taken.

        Raises:
            OutputClosed: nobody will ever take it.
        """
        if stream not in self._is_lost:
            self._waiting[stream].extend(text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
            self._size += len(text)
        self.flush()

    def later(self, text: str) -> None:
        """Show text on stderr soon: for handlers of signals, which may come in the middle of another text."""
        self._later.append(text)

    def drop(self, why: str) -> None:
        """Drop what waits, and print why, if anybody reads it."""
        for waiting in self._waiting.values():
            waiting.clear()
        self._size = 0
        self.write("stderr", f"{why}\n")

    def flush(self) -> int:
        """Show what can be written now; return how many characters that were.

        Raises:
            OutputClosed: whoever read stdout has gone.
        """
        while self._later:
            self.write("stderr", self._later.popleft())
        before = self._size
        for stream, waiting in self._waiting.items():
            to = sys.stdout if stream == "stdout" else sys.stderr
            while waiting and is_writable(to):
                piece = waiting.popleft()
                if _is_file(to):
                    piece += "".join(waiting)
                    waiting.clear()
                self._size -= len(piece)
                self._show(stream, to, piece)
        return before - self._size

    def finish(self, patience: float | None = None) -> bool:
        """Show what is left, and wait until it is written; return whether all was.

        Args:
            patience: seconds after which the rest is dropped, if nothing was taken in them; None to wait for ever.
        """
        taken_at = time.monotonic()
        while not self.is_empty:
            if self.flush():
                taken_at = time.monotonic()
            elif patience is not None and time.monotonic() - taken_at > patience:
                return False
            else:
                time.sleep(0.02)
        return True

    def _show(self, stream: str, to: IO[str], text: str) -> None:
        try:
            to.write(text)
            to.flush()
        except OSError as error:
            self._size -= sum(map(len, self._waiting[stream]))
            self._waiting[stream].clear()
            self._is_lost.add(stream)
            with contextlib.suppress(OSError):  # what Python holds back for it must not fail at the very end
                os.dup2(os.open(os.devnull, os.O_WRONLY), to.fileno())
            if stream == "stdout" and isinstance(error, BrokenPipeError):
                raise OutputClosed from None
            self.write("stderr", f"{stream} cannot be written any more: {error.strerror}; the job goes on\n")


def is_writable(to: IO[str]) -> bool:
    """Return whether a stream takes a piece of text now."""
    try:
        asked = select.poll()
        asked.register(to.fileno(), select.POLLOUT)
        return bool(asked.poll(0))
    except (OSError, ValueError):  # no file of the system's
        return True


def _is_file(to: IO[str]) -> bool:
    try:
        return stat.S_ISREG(os.fstat(to.fileno()).st_mode)
    except (OSError, ValueError):
        return True
