"""The output of all processes as one, line by line, each with the number of its process, or step by step."""

from __future__ import annotations

import collections
import contextlib
import math
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from outlay.jobs.heartbeat import STEP_MARK
from outlay.launcher.console import OutputConsole, Stream

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # of ANSI terminals, the most different first
_LAST_LINES, _LONGEST_LINE = 400, 4096
# What gloo says of itself each time that it connects, whoever asked.
_CHATTER = re.compile(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks")
# Addresses of compiled code, which say nothing to anybody.
_ADDRESSES = re.compile(r"\s*(PC: )?@ +0x|\*\*\* |https://symbolize|[EFIW]\d{4} .*] RAW: ")


class Log:
    """A log file of bounded size: it holds the last 32 MiB of what is written at least, and 64 MiB at most.

    Args:
        path: the file; it is appended to. What is too much for it goes to a second one beside it, and then away.
    """

    MOST = 1 << 25  # characters in each of both

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = path.with_name(f"{path.name}.1")
        self.problem = ""
        self._file: IO[str] | None = None
        self._size = 0
        try:
            self._file = path.open("a", encoding="utf-8")
            self._size = self._file.tell()
        except OSError as error:
            self.problem = f"{path}: {error.strerror}"

    def write(self, text: str) -> None:
        """Add text; if the disk is full, remove the file and write no more, since others need the room."""
        if self._file is None:
            return
        try:
            self._file.write(text)
            self._file.flush()
            self._size += len(text)
            if self._size > self.MOST:
                self._file.close()
                self._path.replace(self._before)
                self._file, self._size = self._path.open("a", encoding="utf-8"), 0
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror}"
            for file in (self._path, self._before):
                file.unlink(missing_ok=True)
            self.close()

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # there is no room for what it still holds
                self._file.close()
            self._file = None

    def __str__(self) -> str:
        if self.problem:
            return f"all output is lost, {self.problem}"
        return f"{'the last of' if self._before.exists() else 'all'} output: {self._path}"


class MergedOutput:
    """Shows lines as they come, on stdout or stderr as they were written, and logs all of them.

    Args:
        num_processes: how many processes there are.
        log: the file; it is appended to.
        console: what takes the lines.
        in_order: show them by steps instead.
    """

    def __init__(self, num_processes: int, log: Path, console: OutputConsole, *, in_order: bool = False) -> None:
        self._width = len(str(num_processes - 1))
        self.log = Log(log)
        self.console = console
        self._errors = [collections.deque[str](maxlen=_LAST_LINES) for _ in range(num_processes)]
        self._held: list[int] | None = None
        streams: tuple[Stream, ...] = ("stdout", "stderr") if in_order else ()
        self._orders: dict[Stream, StepOrder] = {stream: StepOrder(num_processes) for stream in streams}
        self._warned: set[str] = set()

    def add(self, process: int, stream: Stream, lines: list[str]) -> None:
        """Take lines that a process has written to `stdout` or `stderr`."""
        order = self._orders.get(stream)
        if order:
            lines = order.add(process, lines)
        self.log.write("".join(f"[{process}] {line}\n" for line in lines))
        if stream == "stderr":
            self._errors[process].extend(line[:_LONGEST_LINE] for line in lines)
        self._show(stream, order.ready() if order else ((process, line) for line in lines))
        if order and order.overflowed:
            self._warn("too many lines were held back for a process that is behind: they are not all in order of steps")
        if self.log.problem:
            self._warn(f"output is not kept in a file any more, {self.log.problem}; the job goes on")

    def end(self, process: int, stream: Stream) -> None:
        """Note that a process writes no more to `stdout` or `stderr`."""
        if order := self._orders.get(stream):
            order.end(process)
            self._show(stream, order.ready())

    def hold_errors(self) -> None:
        """Write stderr only to the file from now on: once a process has failed, the others complain about it."""
        if self._held is None:
            self._show_rest()
            self._held = [0] * len(self._errors)

    def num_held(self, but: int | None) -> int:
        """Return how many lines of the other processes were not shown."""
        return sum(num for process, num in enumerate(self._held or ()) if process != but)

    def last_errors(self, process: int) -> str:
        """Return the end of a process's stderr, from its last traceback on if there is one; it ends in a newline."""
        lines = [line for line in self._errors[process] if not _ADDRESSES.match(line)]
        starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        return "".join(f"{line}\n" for line in (lines[starts[-1] :] if starts else lines[-10:]))

    def close(self) -> None:
        """Show what is left, and close the file."""
        self._show_rest()
        self.log.close()

    def _show_rest(self) -> None:
        for stream, order in self._orders.items():
            self._show(stream, order.rest())

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self.console.write("stderr", f"{text}\n")

    def _show(self, stream: Stream, lines: Iterable[tuple[int, str]]) -> None:
        is_terminal = (sys.stdout if stream == "stdout" else sys.stderr).isatty()
        shown = []
        for process, line in lines:
            if stream == "stderr" and self._held is not None:
                self._held[process] += 1
            elif not _CHATTER.match(line):
                shown.append(f"{self._prefix(process, is_terminal)} {line}\n")
        self.console.write(stream, "".join(shown))

    def _prefix(self, process: int, is_terminal: bool) -> str:
        text = f"[{process:>{self._width}}]"
        return f"\x1b[{_COLOURS[process % len(_COLOURS)]}m{text}\x1b[0m" if is_terminal else text


_BEFORE_THE_FIRST = -1
_MOST = 1 << 24  # characters that are held back


class StepOrder:
    """Orders the lines of one stream by steps: lines of a step are released once all processes have finished it.

    Args:
        num_processes: how many processes there are.

    Attributes:
        overflowed: whether so much was held back, for a process that was behind, that some lines came too early.
    """

    def __init__(self, num_processes: int) -> None:
        self._finished: list[float] = [_BEFORE_THE_FIRST] * num_processes
        self._begun_lines = [""] * num_processes
        self._held: dict[float, list[list[str]]] = collections.defaultdict(lambda: [[] for _ in range(num_processes)])
        self._size = 0
        self.overflowed = False

    def add(self, process: int, lines: list[str]) -> list[str]:
        """Take lines of a process; return them without the marks of steps."""
        plain = []
        for line in lines:
            if end := STEP_MARK.search(line):
                self._begun_lines[process] += line[: end.start()]
                self._finished[process] = int(end[1])
                continue
            plain.append(self._begun_lines[process] + line)
            self._begun_lines[process] = ""
            self._held[self._finished[process]][process].append(plain[-1])
            self._size += len(plain[-1])
        return plain

    def end(self, process: int) -> None:
        """Note that a process writes no more."""
        if begun := self._begun_lines[process]:
            self._held[self._finished[process]][process].append(begun)
            self._size += len(begun)
            self._begun_lines[process] = ""
        self._finished[process] = math.inf

    def ready(self) -> Iterator[tuple[int, str]]:
        """Yield lines, each with its process, of the steps that all have finished; all lines if too many are held."""
        yield from self._until(min(self._finished))
        if self._size > _MOST:
            self.overflowed = True
            yield from self.rest()

    def rest(self) -> Iterator[tuple[int, str]]:
        """Yield all lines that are left."""
        return self._until(math.inf)

    def _until(self, step: float) -> Iterator[tuple[int, str]]:
        for number in sorted(number for number in self._held if number < step):
            for process, lines in enumerate(self._held.pop(number)):
                self._size -= sum(map(len, lines))
                yield from ((process, line) for line in lines)
