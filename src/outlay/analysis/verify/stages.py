"""Show what takes a while, stage by stage."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Stage = Callable[[str], None]
"""Given what a proof does next, in words."""

_WIDTH = 79


@contextlib.contextmanager
def on_terminal(progress: Callable[[str], None] | None) -> Iterator[Callable[[str], None]]:
    """Yield a function that is given each stage in words.

    Args:
        progress: this function itself. If None, a terminal shows the stage on stderr, in one line that is erased at the
            end; beyond a terminal nothing is shown.
    """
    if progress is not None or not sys.stderr.isatty():
        yield progress or (lambda stage: None)
        return

    def show(stage: str) -> None:
        sys.stderr.write(f"\r{stage[:_WIDTH]:{_WIDTH}}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write(f"\r{'':{_WIDTH}}\r")
        sys.stderr.flush()
