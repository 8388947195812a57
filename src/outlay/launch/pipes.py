"""Reads the pipes of all processes without waiting for any one of them."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterable
from typing import IO

from outlay.launch.lines import Lines
from outlay.launch.merged_output import MergedOutput
from outlay.launch.process import Process

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
