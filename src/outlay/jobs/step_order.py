"""Lines in the order of steps: those of a step come when all processes have finished it, process by process.

A process marks in its output where a step ends, since what it writes and what it says to its launcher arrive on
different ways.
"""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterator

_MARK = re.compile("\x1eoutlay (\\d+)\x1e")
_BEFORE_THE_FIRST = -1
_MOST = 1 << 24  # characters that are held back


def mark(step: int) -> bytes:
    """What a process writes when it has finished a step: a line of its own, unless it was in the middle of one."""
    return b"\x1eoutlay %d\x1e\n" % step


class StepOrder:
    """Holds back the lines of one stream, stdout or stderr, of all processes.

    Args:
        num_processes: how many processes there are.

    Attributes:
        overflowed: so much was held back, for a process that was behind, that some of it came before its turn.
    """

    def __init__(self, num_processes: int) -> None:
        self._finished: list[float] = [_BEFORE_THE_FIRST] * num_processes
        self._begun_lines = [""] * num_processes
        self._held: dict[float, list[list[str]]] = collections.defaultdict(lambda: [[] for _ in range(num_processes)])
        self._size = 0
        self.overflowed = False

    def add(self, process: int, lines: list[str]) -> list[str]:
        """Take lines of a process; returns them as it wrote them, without marks."""
        plain = []
        for line in lines:
            if found := _MARK.search(line):
                self._begun_lines[process] += line[: found.start()]
                self._finished[process] = int(found[1])
                continue
            plain.append(self._begun_lines[process] + line)
            self._begun_lines[process] = ""
            self._held[self._finished[process]][process].append(plain[-1])
            self._size += len(plain[-1])
        return plain

    def end(self, process: int) -> None:
        """A process writes no more."""
        if begun := self._begun_lines[process]:
            self._held[self._finished[process]][process].append(begun)
            self._size += len(begun)
            self._begun_lines[process] = ""
        self._finished[process] = math.inf

    def ready(self) -> Iterator[tuple[int, str]]:
        """Lines, each with its process, of steps that all processes have left behind; all where they are too many."""
        yield from self._until(min(self._finished))
        if self._size > _MOST:
            self.overflowed = True
            yield from self.rest()

    def rest(self) -> Iterator[tuple[int, str]]:
        """All lines that are left."""
        return self._until(math.inf)

    def _until(self, step: float) -> Iterator[tuple[int, str]]:
        for number in sorted(number for number in self._held if number < step):
            for process, lines in enumerate(self._held.pop(number)):
                self._size -= sum(map(len, lines))
                yield from ((process, line) for line in lines)
