"""Answer Ctrl-C at any time: one line, exit code 130, and no traceback.

Nothing heavy is imported here, so that Ctrl-C is answered while everything else is.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, NoReturn

STOPPED = 130
"""Exit code: 128 + SIGINT, as shells count."""

_SAME_PRESS = 1.0
"""Seconds in which further signals count as the same Ctrl-C: a terminal and a parent process may both send one."""
_LONGEST_IMPORT = 3.0
"""Seconds that Ctrl-C waits for an import to finish; there is nothing to save yet."""
_first: float | None = None
_deferred: float | None = None
_watching = False
_patience = 10.0


def answer() -> None:
    """Raise `KeyboardInterrupt` at the first Ctrl-C from now on; a second one ends the process at once.

    If Ctrl-C is ignored or handled already, by whoever started the process, that stays.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    signal.signal(signal.SIGINT, _interrupt)
    shown, shown_at_end = sys.unraisablehook, sys.excepthook

    def on_unraisable(unraisable: Any) -> None:
        # Python cannot raise an exception out of a callback of its garbage collector, such as JAX's, and drops it.
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            shown(unraisable)
            return
        again = threading.Timer(0.05, _again)
        again.daemon = True
        again.start()

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # NumPy prints what interrupts its import, and turns it into another error.
        if not (issubclass(kind, KeyboardInterrupt) and has_come()):
            shown_at_end(kind, error, trace)

    sys.unraisablehook, sys.excepthook = on_unraisable, on_exception


def watch(patience: float = 10.0) -> None:
    """End the process from now on if native code, such as a compiler, keeps Python from seeing Ctrl-C.

    It uses a thread, which a process that only starts others should not have.

    Args:
        patience: seconds that native code may take; few if the process has nothing to save.
    """
    global _watching, _patience
    _patience = patience
    if _watching or not answers():
        return
    _watching = True
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    threading.Thread(target=_watch_signals, args=(reads,), name="outlay-interrupt", daemon=True).start()


def answers() -> bool:
    """Return whether Ctrl-C is answered here."""
    return signal.getsignal(signal.SIGINT) is _interrupt


def has_come() -> bool:
    """Return whether Ctrl-C was pressed; whatever fails afterwards fails because of it."""
    return _first is not None


def leave(code: int) -> NoReturn:
    """Flush stdout and stderr, and end the process now.

    Python's own shutdown would wait for compilers, and crashes in some of them (JAX 0.10.2).
    """
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _first, _deferred
    now = time.monotonic()
    if _first is None and _is_importing(frame):
        # An exception raised inside of an import is swallowed, or crashes the process: JAX and NumPy are C++
        # extensions.
        is_pressed_again = _deferred is not None and number == signal.SIGINT and now - _deferred > _SAME_PRESS
        _deferred = now if _deferred is None else _deferred
        if is_pressed_again or now - _deferred > _LONGEST_IMPORT:
            _leave_at_once()
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return
    if _first is None:
        _first = now
        raise KeyboardInterrupt
    if number == signal.SIGINT and now - _first > _SAME_PRESS:
        _leave_at_once()


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether an import runs, or JAX loads its plugins, which continues whatever they raise."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code.co_name == "discover_pjrt_plugins":
            return True
        frame = frame.f_back
    return False


def _again() -> None:
    global _first
    _first = None
    if main := threading.main_thread().ident:  # a signal wakes it from a sleep; _thread.interrupt_main does not
        signal.pthread_kill(main, signal.SIGINT)


def _watch_signals(reads: int) -> None:
    while signals := os.read(reads, 1):
        if signals[0] != signal.SIGINT:
            continue
        pressed = time.monotonic()
        while _first is None and time.monotonic() - pressed < _patience:
            again, _, _ = select.select([reads], [], [], 0.1)
            if again and os.read(reads, 1)[0] == signal.SIGINT and time.monotonic() - pressed > _SAME_PRESS:
                _leave_at_once()
        if _first is None or pressed - _first > _SAME_PRESS:
            _leave_at_once()


def _leave_at_once() -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, b"stopped\n")
    os._exit(STOPPED)
