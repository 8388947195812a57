"""Something that goes on beside the training, and whose failure is not lost."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable

from outlay.core.error_types import CheckpointError


class InBackground:
    """A call that runs in a thread of its own; `finish` waits for it and raises what it raised.

    Args:
        call: what to do.
        failed: what to say when it fails, before the reason.
    """

    def __init__(self, call: Callable[[], None], failed: str) -> None:
        self._call = call
        self._failed = failed
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="outlay checkpoint")
        atexit.register(self._complain)
        self._thread.start()

    @property
    def has_failed(self) -> bool:
        """Whether it has ended with an error."""
        return self._error is not None and not self._thread.is_alive()

    def join(self) -> None:
        """Wait for it, whatever comes of it."""
        self._thread.join()

    def finish(self) -> None:
        """Wait for it.

        Raises:
            CheckpointError: it failed.
        """
        self._thread.join()
        atexit.unregister(self._complain)
        if self._error is not None:
            raise CheckpointError(self._message()) from self._error

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error

    def _complain(self) -> None:
        """At the end of a program that did not wait. Python lets no thread start another by then, so most fail."""
        if self._error is not None:
            print(f"error: {self._message()}\n  fix: wait for it before the program ends", file=sys.stderr)

    def _message(self) -> str:
        return f"{self._failed}: {in_short(self._error)}"


def in_short(error: BaseException | None) -> str:
    """What an error is, in a line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
