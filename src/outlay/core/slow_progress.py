"""Say on a terminal what takes long, while it does."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from outlay.core.quantities import format_seconds

FIRST, EVERY = 10.0, 60.0
"""Seconds until something is said, and from then on from time to time."""


@contextlib.contextmanager
def progress_on_terminal(
    what: Callable[[], str], stream: TextIO | None = None, *, first: float = FIRST, every: float = EVERY
) -> Iterator[None]:
    """Say what the block does if it takes long, and for how long so far; a log gets nothing.

    Args:
        what: says it in words; it is asked only then.
        stream: the terminal; stderr by default.
        first: seconds until it is said.
        every: seconds until it is said again.
    """
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        yield
        return
    done, start = threading.Event(), time.monotonic()

    def watch() -> None:
        seconds = first
        while not done.wait(seconds):
            print(f"{what()}: {format_seconds(time.monotonic() - start)} so far", file=out, flush=True)
            seconds = every

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
