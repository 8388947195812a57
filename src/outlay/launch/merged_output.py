"""The output of all processes as one, line by line, each with the number of its process."""

from __future__ import annotations

import collections
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from outlay.launch.step_order import StepOrder

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # of ANSI terminals, the most different first
_LAST_LINES = 400
# What gloo says of itself each time that it connects, whoever asked.
_CHATTER = re.compile(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks")


class MergedOutput:
    """Shows lines as they come, stdout's on stdout and stderr's on stderr; a file gets all of them.

    Args:
        num_processes: how many processes there are.
        log: the file; it is appended to.
        in_order: show them by steps instead.
    """

    def __init__(self, num_processes: int, log: Path, *, in_order: bool = False) -> None:
        self._width = len(str(num_processes - 1))
        self._log = log.open("a", encoding="utf-8")
        self._errors = [collections.deque[str](maxlen=_LAST_LINES) for _ in range(num_processes)]
        self._held: list[int] | None = None
        self._orders = {stream: StepOrder(num_processes) for stream in ("stdout", "stderr")} if in_order else {}

    def add(self, process: int, stream: str, lines: list[str]) -> None:
        """Lines that a process has written to `stdout` or `stderr`."""
        order = self._orders.get(stream)
        if order:
            lines = order.add(process, lines)
        for line in lines:
            self._log.write(f"[{process}] {line}\n")
            if stream == "stderr":
                self._errors[process].append(line)
        self._log.flush()
        self._show(stream, order.ready() if order else ((process, line) for line in lines))

    def end(self, process: int, stream: str) -> None:
        """A process writes no more to `stdout` or `stderr`."""
        if order := self._orders.get(stream):
            order.end(process)
            self._show(stream, order.ready())

    def hold_errors(self) -> None:
        """From now on keep stderr's lines to the file: once a process has failed, the others complain about it."""
        if self._held is None:
            self._show_rest()
            self._held = [0] * len(self._errors)

    def num_held(self, but: int | None) -> int:
        """Lines that were kept from the screen, but for those of one process."""
        return sum(num for process, num in enumerate(self._held or ()) if process != but)

    def last_errors(self, process: int) -> str:
        """The last that a process wrote to stderr, from its last traceback on if there is one; ends in a newline."""
        lines = list(self._errors[process])
        starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        return "".join(f"{line}\n" for line in (lines[starts[-1] :] if starts else lines[-10:]))

    def close(self) -> None:
        """Show what is left, and close the file."""
        self._show_rest()
        self._log.close()

    def _show_rest(self) -> None:
        for stream, order in self._orders.items():
            self._show(stream, order.rest())

    def _show(self, stream: str, lines: Iterable[tuple[int, str]]) -> None:
        for process, line in lines:
            if stream == "stderr" and self._held is not None:
                self._held[process] += 1
            elif not _CHATTER.match(line):
                to = sys.stdout if stream == "stdout" else sys.stderr
                to.write(f"{self._prefix(process, to.isatty())} {line}\n")
        sys.stdout.flush()

    def _prefix(self, process: int, is_terminal: bool) -> str:
        text = f"[{process:>{self._width}}]"
        return f"\x1b[{_COLOURS[process % len(_COLOURS)]}m{text}\x1b[0m" if is_terminal else text
