"""Reads the pipes of all processes without waiting for any one of them."""

from __future__ import annotations

import os
import re
import selectors
import time
from collections.abc import Iterable
from typing import IO

from outlay.jobs.merged_output import MergedOutput
from outlay.jobs.process import Process

_PIECE = 1 << 16
_LAST_WORDS = 0.5  # seconds


class Pipes:
    """Takes lines from the processes to the merged output.

    Attributes:
        last_line: by process, when it last wrote something (`time.monotonic`).
    """

    def __init__(self, processes: Iterable[Process], output: MergedOutput) -> None:
        self._output = output
        self._selector = selectors.DefaultSelector()
        self._pipes: list[IO[bytes]] = []
        self.last_line: dict[int, float] = {}
        for process in processes:
            for stream in ("stdout", "stderr"):
                pipe = getattr(process.popen, stream)
                self._pipes.append(pipe)
                self._selector.register(pipe, selectors.EVENT_READ, (process.number, stream, Lines()))

    def wait(self, seconds: float) -> bool:
        """Wait until something can be read, at most so long."""
        if self._selector.get_map():
            return bool(self._selector.select(seconds))
        time.sleep(seconds)
        return False

    def read(self) -> None:
        """Take what is there now."""
        for key, _ in self._selector.select(0):
            process, stream, lines = key.data
            piece = os.read(key.fd, _PIECE)
            self._output.add(process, stream, lines.add(piece) if piece else lines.finish())
            self.last_line[process] = time.monotonic()
            if not piece:
                self._output.end(process, stream)
                self._selector.unregister(key.fileobj)

    def read_rest(self) -> None:
        """Take what ended processes have left behind, and close the pipes; a second call changes nothing."""
        if not self._pipes:
            return
        deadline = time.monotonic() + _LAST_WORDS
        while self._selector.get_map() and time.monotonic() < deadline:
            self.wait(0.05)
            self.read()
        for key in list(self._selector.get_map().values()):
            process, stream, lines = key.data
            self._output.add(process, stream, lines.finish())
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()
        self._pipes = []


LONGEST = 1 << 20
"""Bytes of a line that are held until its end comes; a longer one is shown in pieces."""

_ENDS = re.compile(rb"(\r\n|\n|\r(?=.))", re.DOTALL)


class Lines:
    """Collects what comes from a pipe and gives back the lines that are whole."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> list[str]:
        """Add what came; returns the lines that are whole now, without their ends.

        A carriage return ends a line too: progress bars write one instead of a newline.
        """
        begins_an_end = bool(self._begun) and self._begun[-1].endswith(b"\r")
        if not begins_an_end and b"\n" not in piece and b"\r" not in piece:  # what came before is not looked at again
            return self._begin(piece)
        *parts, rest = _ENDS.split(b"".join(self._begun) + piece)
        self._begun, self._size = [], 0
        pairs = zip(parts[::2], parts[1::2], strict=True)
        whole = [line.decode(errors="replace") for line, end in pairs if line or end != b"\r"]
        return whole + self._begin(rest)

    def finish(self) -> list[str]:
        """What is left when the pipe has closed."""
        rest, self._begun, self._size = b"".join(self._begun), [], 0
        return [rest.decode(errors="replace").rstrip("\r")] if rest else []

    def _begin(self, piece: bytes) -> list[str]:
        if piece:
            self._begun.append(piece)
            self._size += len(piece)
        return self.finish() if self._size >= LONGEST else []
