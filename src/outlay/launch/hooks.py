"""What a process of a job does when it ends: it says why, and it does not make the others wait."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn

from outlay.launch.ending import UNCAUGHT
from outlay.launch.exits import end_of_program, exit_and_remember
from outlay.launch.heartbeat import beat
from outlay.launch.job_folder import FINISHED, Failure, JobFolder
from outlay.launch.stop_request import STOPPED

_INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True)
class Hooks:
    """The hooks of this process.

    Args:
        process: its number.
        folder: of the job; None where no launcher reads it.
    """

    process: int
    folder: JobFolder | None

    def install(self) -> None:
        """Hook into exceptions that nobody catches, into the end of the program and into SIGUSR1.

        Without this, JAX's own end waits for minutes for the other processes, and they wait for this one.
        """
        import jax  # noqa: F401  registers what it does at the end, so that ours is registered later and comes first

        shown, shown_in_thread = sys.excepthook, threading.excepthook
        own = os.getpid()  # a worker that this process forks inherits the hooks, but does not fail for it

        def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if os.getpid() == own:
                self._record(kind.__name__, str(error), "".join(traceback.format_exception(kind, error, trace)))
            shown(kind, error, trace)
            if os.getpid() == own:
                _leave(_INTERRUPTED if issubclass(kind, KeyboardInterrupt) else UNCAUGHT)

        def on_thread_exception(args: threading.ExceptHookArgs) -> None:
            if os.getpid() != own or issubclass(args.exc_type, SystemExit):  # which ends a thread as it should
                shown_in_thread(args)
                return
            text = "".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback))
            self._record(args.exc_type.__name__, str(args.exc_value), text)
            shown_in_thread(args)
            _leave(UNCAUGHT)

        sys.excepthook, threading.excepthook = on_exception, on_thread_exception
        sys.exit = exit_and_remember
        atexit.register(self._on_end)
        if self.folder:
            stacks = self.folder.stacks_path(self.process).open("ab")  # open as long as the process runs
            faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)

    def _record(self, kind: str, message: str, text: str) -> None:
        if self.folder:
            with contextlib.suppress(OSError):  # a full disk must not hide the error itself
                self.folder.write_failure(self.process, Failure(time.time(), kind, message, text))

    def _on_end(self) -> None:
        ending = end_of_program()
        if ending and ending.exit_code == STOPPED:
            _leave_together()
        if ending:
            self._record("SystemExit", str(ending), ending.stack)
            _leave(ending.exit_code)
        beat(None, FINISHED)


def _leave_together() -> NoReturn:
    """All processes stop on request, and each at once when all are here: srun ends those that are later than others."""
    import jax

    jax.distributed.shutdown()
    _leave(STOPPED)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
