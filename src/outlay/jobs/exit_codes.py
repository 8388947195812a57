"""The exit codes with which processes of a job end, and which of their errors only echo another's end."""

from __future__ import annotations

import re
import signal
import sys
from typing import Any, ClassVar

STUCK = 1
"""Exit code where no process failed, but the job could not go on."""

UNCAUGHT = 13
"""Exit code of a process that an exception ends: unlike 1, programs seldom use it themselves."""

LOST = 69
"""Exit code of processes that end because another one, or its machine, has gone: `EX_UNAVAILABLE`."""

STOPPED = 75
"""Exit code of a run that SIGUSR1 has asked to end, and that can be continued: `EX_TEMPFAIL`, try again later."""

TERMINATED = 128 + signal.SIGTERM
"""Exit code of a run that was asked to end by SIGTERM, and has saved before."""

STOPPING = (STOPPED, TERMINATED)

INTERRUPTED = 128 + signal.SIGINT


class NoticedExit(SystemExit):
    """A `SystemExit` that is remembered if it ends the program: hooks at the end of a program cannot ask Python for it.

    Whoever catches it may ask for its code. If nobody has, Python itself asks, with no frame above.

    Args:
        status: as of `sys.exit`.
        stack: where the program ends; empty where it has printed why.
    """

    last: ClassVar[NoticedExit | None] = None

    def __init__(self, status: Any = None, stack: str = "") -> None:
        super().__init__(status)
        self.status, self.stack = status, stack

    @property
    def code(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What `sys.exit` was given."""
        if sys._getframe().f_back is None:
            NoticedExit.last = self
        return self.status

    @property
    def exit_code(self) -> int:
        """The exit code of the process, as Python makes it of what `sys.exit` was given."""
        return self.status & 0xFF if isinstance(self.status, int) else int(self.status is not None)


class Explained(NoticedExit):
    """Ends a program with an exit code after it has printed the reason, so that no traceback is shown."""


def shell_code(exit_code: int) -> int:
    """Return an exit code as a shell does: 128 and the signal's number where a signal ended the process."""
    return 128 - exit_code if exit_code < 0 else exit_code


# What gloo, NCCL, and JAX's coordination service say in the processes that remain when one has gone.
_ECHOES = re.compile(
    "|".join(
        (
            r"Connection (closed|reset) by peer",
            r"Connection refused",
            r"Gloo [\w-]+ failed",
            r"Gloo context initialization failed",
            r"Socket closed",
            r"Broken pipe",
            r"coordination (service|agent)",
            r"CoordinationService",
            r"JAX distributed service detected fatal errors",
            r"another task died",
            r"stopped sending heartbeats",
            r"[Ss]hutdown barrier",
            r"NCCL.*(remote|abort)",
        )
    ),
    re.IGNORECASE,
)


def is_echo(text: str) -> bool:
    """Return whether an error only says that another process has gone.

    >>> is_echo("UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:5000")
    True
    """
    return _ECHOES.search(text) is not None
