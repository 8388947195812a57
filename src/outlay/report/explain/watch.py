"""What the compiler prints while it compiles: caught, told apart, and handed on."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_STDERR = 2
# There is one standard error for all threads.
_one_at_a_time = threading.Lock()


@dataclass
class Printed:
    """What was printed.

    Attributes:
        messages: the lines that were recognised; ready when the compiler is done.
    """

    messages: tuple[str, ...] = ()


@contextlib.contextmanager
def watching(recognised: Callable[[str], bool]) -> Iterator[Printed]:
    """Catch what is written to the standard error, also by C++ code, and write what is not recognised after.

    Meanwhile it lies in a file of the temporary folder, `outlay-compiler-*.log`; it stays if the process dies.

    Args:
        recognised: whether a line is a message that will be reported otherwise.
    """
    printed = Printed()
    with _one_at_a_time, contextlib.ExitStack() as stack:
        # JAX's own warning of donation in vain comes from Python; what became of it stands in the compiled program.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        try:
            original = os.dup(_STDERR)
        except OSError:  # a process without a standard error
            yield printed
            return
        file, path = tempfile.mkstemp(prefix="outlay-compiler-", suffix=".log")
        _flush()
        os.dup2(file, _STDERR)
        try:
            yield printed
        finally:
            _flush()
            os.dup2(original, _STDERR)
            os.close(original)
            lines = _read(file)
            os.close(file)
            os.unlink(path)
            printed.messages = tuple(line.rstrip("\n") for line in lines if recognised(line))
            _write("".join(line for line in lines if not recognised(line)))


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()


def _read(file: int) -> list[str]:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), encoding="utf-8", errors="surrogateescape", newline="") as text:
        return text.read().splitlines(keepends=True)


def _write(text: str) -> None:
    left = text.encode("utf-8", errors="surrogateescape")
    while left:
        left = left[os.write(_STDERR, left) :]
