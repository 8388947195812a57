"""Say on a terminal what is being compiled, and for what, if that takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

import jax

from outlay.core.quantities import counted, format_seconds

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


def compile_progress(lowered: jax.stages.Lowered, device: jax.Device) -> contextlib.AbstractContextManager[None]:
    """Return the context that says on a terminal what is compiled, if that takes long."""
    return progress_on_terminal(lambda: in_words(lowered, device))


def in_words(lowered: jax.stages.Lowered, device: jax.Device) -> str:
    """Say what is compiled, and for what."""
    attributes: Any = cast(Any, lowered.compiler_ir("stablehlo")).operation.attributes
    name = str(attributes["sym_name"]).strip('"').removeprefix("jit_")
    num = str(attributes["mhlo.num_partitions"]).partition(" ")[0]
    return f"compiling {name} for {counted(int(num), 'device')} of {device.device_kind}"
