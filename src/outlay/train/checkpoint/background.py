"""Something that goes on beside the training, and whose failure is not lost."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable

from outlay.core.errors import CheckpointError


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
            print(f"error: {self._message()}\n  cure: wait for it before the program ends", file=sys.stderr)

    def _message(self) -> str:
        error = self._error
        return f"{self._failed}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
