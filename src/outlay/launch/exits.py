"""How this program ends: Python does not tell those who ask at its end, after whom nobody can know."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

_ending: SystemExit | None = None
_code_of = SystemExit.__dict__["code"].__get__
_stacks: dict[int, str] = {}  # of calls of `sys.exit`, by the exception's identity; only the last one is kept


@dataclass(frozen=True)
class Failed:
    """Why a program ends as a failure.

    Attributes:
        kind: the exception's class.
        message: its text.
        text: the traceback as Python prints it, or the place of the exit.
        exit_code: what the program ends with; None for an exception, after which Python has 1.
    """

    kind: str
    message: str
    text: str
    exit_code: int | None = None


def watch_exits() -> None:
    """From now on, notice with which `SystemExit` the program ends, whoever has raised it."""
    sys.exit = _exit
    own = SystemExit.__dict__["code"]
    if isinstance(own, property):
        return
    # Python itself asks an exception that nobody caught for its code, and tells nobody. The attribute is replaced in
    # the dictionary of the built-in class, which can be reached in this way only.
    with contextlib.suppress(IndexError, TypeError, AttributeError):
        (attributes,) = gc.get_referents(SystemExit.__dict__)
        attributes["code"] = property(_code, own.__set__)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))


def end_of_program() -> Failed | None:
    """What ends this program as a failure, at its end; None where it ends well."""
    if _ending is not None:
        status = _code_of(_ending)
        code = status & 0xFF if isinstance(status, int) else int(status is not None)
        text = _stacks.get(id(_ending)) or _traceback(_ending)
        return Failed("SystemExit", str(_ending), text, code) if code else None
    error = getattr(sys, "last_value", None)  # set by Python before it calls an excepthook, also one that is not ours
    if isinstance(error, BaseException) and not isinstance(error, SystemExit) and not hasattr(sys, "ps1"):
        return Failed(type(error).__name__, str(error), "".join(traceback.format_exception(error)))
    return None


def _exit(status: Any = None, /) -> NoReturn:
    """What `sys.exit` does, with a memory of where."""
    error = SystemExit(status)
    stack = "".join(traceback.format_stack(sys._getframe(1)))
    _stacks.clear()
    _stacks[id(error)] = f"Traceback (most recent call last):\n{stack}SystemExit: {status}\n"
    raise error


def _traceback(error: SystemExit) -> str:
    trace = "".join(traceback.format_exception(error))
    if error.__traceback__ is not None:
        return trace
    return f"{trace.rstrip()}\n  (where, Python does not tell: sys.exit(...) would)\n"


def _code(error: SystemExit) -> Any:
    """What `SystemExit(...)` was given.

    Whoever catches the exception may ask. Where no Python code asks, it is Python itself, because nobody has caught it
    and the program ends.
    """
    global _ending
    try:
        sys._getframe(1)
    except ValueError:  # the stack is not so deep
        _ending = error
    return _code_of(error)
