"""Exit hooks of a process of a job: it reports why it ends, and does not leave the others waiting."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

from outlay.jobs.exit_codes import INTERRUPTED, STOPPING, UNCAUGHT, NoticedExit, is_echo
from outlay.jobs.heartbeat import beat
from outlay.jobs.job_folder import FINISHED, Failure, JobFolder
from outlay.jobs.peer_watch import PeerWatch, leave


@dataclass
class ExitHooks:
    """The exit hooks of this process.

    Args:
        process: its number.
        folder: the folder of the job; None where no launcher reads it.
        peer_watch: once the processes have met.
    """

    process: int
    folder: JobFolder | None
    peer_watch: PeerWatch | None = None

    def install(self) -> None:
        """Hook into uncaught exceptions, the end of the program, and SIGUSR1.

        Without this, JAX's own shutdown waits for minutes for the other processes, and they wait for this one.
        """
        import jax  # noqa: F401  registers what it does at the end, so that ours is registered later and comes first

        shown, shown_in_thread = sys.excepthook, threading.excepthook
        own = os.getpid()  # a worker that this process forks inherits the hooks, but does not fail for it

        def fail_with(error: BaseException, show: Callable[[], object]) -> None:
            if os.getpid() != own:
                show()
                return
            code = UNCAUGHT
            try:
                reason = _reason_of(error)
                code = reason.exit_code
                self._record(reason)  # before it is printed: the launcher may end this process meanwhile
                _shown_somehow(show, reason)
                self._fail(reason)
            finally:  # whatever has failed of this: a process that stays would hold the others for minutes
                leave(code)

        def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            fail_with(error, lambda: shown(kind, error, trace))

        def on_thread_exception(args: threading.ExceptHookArgs) -> None:
            if args.exc_value is None or issubclass(args.exc_type, SystemExit):  # which ends a thread as it should
                shown_in_thread(args)
            else:
                fail_with(args.exc_value, lambda: shown_in_thread(args))

        def on_end() -> None:
            if os.getpid() != own:
                _leave_fork()
            try:
                self._on_end()
            except BaseException:
                _shown_somehow(traceback.print_exc)
                leave(UNCAUGHT)

        sys.excepthook, threading.excepthook = on_exception, on_thread_exception
        watch_exits()
        atexit.register(on_end)
        if self.folder:
            stacks = self.folder.stacks_path(self.process).open("ab")  # open as long as the process runs
            faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)

    def _record(self, failed: ExitReason) -> None:
        if self.folder:
            with contextlib.suppress(Exception):  # a full disk must not hide the error itself
                words = (failed.kind, failed.message, failed.text)
                self.folder.write_failure(self.process, Failure(time.time(), *words, failed.exit_code))

    def _fail(self, failed: ExitReason) -> None:
        code = failed.exit_code
        if self.peer_watch:
            reason = (
                f"{failed.kind}: {failed.message}".partition("\n")[0] if failed.text else "its own message says why"
            )
            code = self.peer_watch.fail(code, reason, is_echo=is_echo(failed.message))
        leave(code)

    def _on_end(self) -> None:
        failed = end_of_program()
        stopped = failed.exit_code if failed and failed.exit_code in STOPPING else None
        if failed and stopped is None:
            self._record(failed)
            if failed.kind == "SystemExit" and failed.text and not self.folder:
                # Python says nothing of it, and there is no launcher that would.
                print(f"process {self.process} ends:\n{failed.text}", end="", file=sys.stderr)
            self._fail(failed)
        if stopped is None:
            beat(None, FINISHED)
        if self.peer_watch:
            try:
                self.peer_watch.finish()
            except KeyboardInterrupt:
                leave(INTERRUPTED)
        if stopped is not None:
            # All at once, now that all are here: srun ends those that are later than others.
            leave(stopped)


def _leave_fork() -> NoReturn:
    """End a process that one of the job has forked, before JAX's shutdown in it takes the job's service down."""
    failed = end_of_program()
    leave(0 if failed is None else failed.exit_code if failed.kind == "SystemExit" else 1)


@dataclass(frozen=True)
class ExitReason:
    """Why a program ends as a failure.

    Attributes:
        kind: the exception's class.
        message: its text.
        text: the traceback as Python prints it, or the stack of the exit; empty where the program has printed why.
        exit_code: what the program ends with.
    """

    kind: str
    message: str
    text: str
    exit_code: int = UNCAUGHT


def watch_exits() -> None:
    """Have `sys.exit`, `exit` and `quit` end the program in a way that is noticed from now on.

    A `SystemExit` that the program raises itself is not: Python tells nobody that it ends the program.
    """
    sys.exit = _exit
    for name in {"exit", "quit"} & set(vars(builtins)):
        setattr(builtins, name, _exit)


def _exit(status: Any = None, /) -> NoReturn:
    """Do what `sys.exit` does, and remember the stack."""
    stack = "".join(traceback.format_stack(sys._getframe(1)))
    error = NoticedExit(status)
    error.stack = f"Traceback (most recent call last):\n{stack}SystemExit: {_text_of(error)}\n"
    raise error


def end_of_program() -> ExitReason | None:
    """Return why the program ends in failure; None if it ends well, as far as can be known."""
    if last := NoticedExit.last:
        return ExitReason("SystemExit", _text_of(last), last.stack, last.exit_code) if last.exit_code else None
    error = getattr(sys, "last_value", None)  # set by Python before it calls an excepthook, also one that is not ours
    # By its type: `isinstance` asks an object for its `__class__`, which may be anything.
    if issubclass(type(error), BaseException) and not issubclass(type(error), SystemExit) and not hasattr(sys, "ps1"):
        return _reason_of(error)  # pyright: ignore[reportArgumentType]  # it is an exception, by its type
    return None


def _reason_of(error: BaseException) -> ExitReason:
    code = INTERRUPTED if issubclass(type(error), KeyboardInterrupt) else UNCAUGHT
    return ExitReason(_name_of(error), _text_of(error), _formatted(error), code)


def _name_of(error: BaseException) -> str:
    return type.__dict__["__name__"].__get__(type(error))  # a metaclass could have a `__name__` of its own


def _text_of(error: BaseException) -> str:
    """Return the text of an exception, which is a program's own code; never raises."""
    try:
        return str.__str__(str(error))  # not what a subclass of str makes of itself
    except BaseException as failed:
        return f"(it has no text: its __str__ raised {_name_of(failed)})"


def _formatted(error: BaseException) -> str:
    """Return the traceback of an exception as Python prints it, or as much as can be had; never raises."""
    with contextlib.suppress(BaseException):
        return "".join(traceback.format_exception(error))
    with contextlib.suppress(BaseException):
        lines = traceback.format_tb(BaseException.__dict__["__traceback__"].__get__(error))
        return f"Traceback (most recent call last):\n{''.join(lines)}{_name_of(error)}: {_text_of(error)}\n"
    return f"{_name_of(error)}: {_text_of(error)}\n"


def _shown_somehow(show: Callable[[], object], reason: ExitReason | None = None) -> None:
    """Print an error as the program's own hook does, or, where that fails, ourselves."""
    try:
        show()
    except BaseException:
        if reason:
            with contextlib.suppress(BaseException):
                print(reason.text, end="", file=sys.stderr)
