"""`sys.exit` with a memory: when a program ends, Python does not tell those who ask at the end with what exit code."""

from __future__ import annotations

import sys
import traceback
from typing import Any, NoReturn


class Exit(SystemExit):
    """What `sys.exit` raises in a process of a job.

    Attributes:
        stack: where it was called, as Python prints a traceback.
    """

    def __init__(self, status: Any, stack: str) -> None:
        super().__init__(status)
        self.stack = stack
        self.exit_code = status & 0xFF if isinstance(status, int) else int(status is not None)

    @property
    def code(self) -> Any:
        """What `sys.exit` was called with.

        Whoever catches the exception may ask. Where no Python code asks, it is Python itself, because nobody has caught
        it and the program ends.
        """
        global _ending
        if _asked_by_python_itself():
            _ending = self
        return self.args[0]


_ending: Exit | None = None


def exit_and_remember(status: Any = None, /) -> NoReturn:
    """What `sys.exit` does."""
    stack = "".join(traceback.format_stack(sys._getframe(1)))
    raise Exit(status, f"Traceback (most recent call last):\n{stack}SystemExit: {status}\n")


def end_of_program() -> Exit | None:
    """The call of `sys.exit` that ends this program as a failure; None where it ends well."""
    return _ending if _ending and _ending.exit_code else None


def _asked_by_python_itself() -> bool:
    try:
        sys._getframe(2)
    except ValueError:  # the stack is not so deep
        return True
    return False
