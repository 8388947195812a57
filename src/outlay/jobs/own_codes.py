"""Notice when the interpreter asks a `SystemExit` for its code, also one whose class has a `code` of its own."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

Notice = Callable[[SystemExit, Any], None]
"""Takes the exception that ends the program, and its code."""

_own_code = SystemExit.__dict__["code"]


def watch_codes(notice: Notice) -> None:
    """Have `notice` called from now on when nobody has caught a `SystemExit` and the program ends.

    The interpreter asks an uncaught exception for its code, and calls no hook with it. So the attribute is replaced: of
    the built-in class, in its dictionary, which can be reached in one way only; and of each subclass that defines it.
    """
    if isinstance(SystemExit.__dict__["code"], _NoticedCode):
        return
    with contextlib.suppress(IndexError, TypeError, AttributeError):
        (attributes,) = gc.get_referents(SystemExit.__dict__)
        attributes["code"] = _NoticedCode(_own_code, notice)
        attributes["__init_subclass__"] = classmethod(functools.partial(_begin_subclass, notice))
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    _watch_below(SystemExit, notice)


def _begin_subclass(notice: Notice, cls: type[SystemExit], **options: Any) -> None:
    """Do for a new subclass what Python does, and watch its code."""
    super(SystemExit, cls).__init_subclass__(**options)
    _watch(cls, notice)


def _watch_below(cls: type, notice: Notice) -> None:
    for each in type.__subclasses__(cls):
        _watch(each, notice)
        _watch_below(each, notice)


def _watch(cls: type, notice: Notice) -> None:
    own = type.__dict__["__dict__"].__get__(cls)
    if "code" in own and not isinstance(own["code"], _NoticedCode):
        type.__setattr__(cls, "code", _NoticedCode(own["code"], notice))
    if "__getattribute__" in own:
        type.__setattr__(cls, "__getattribute__", _noticed_lookup(own["__getattribute__"], notice))


class _NoticedCode:
    """The attribute `code` of a class, which works as it did, and notices when the interpreter asks.

    Whoever catches the exception may ask. Where no Python frame is above, nobody has caught it and the program ends.
    """

    def __init__(self, own: Any, notice: Notice) -> None:
        self.own, self.notice = own, notice

    def __get__(self, error: Any, cls: Any = None) -> Any:
        own = type(self.own)
        if error is None:
            return self.own.__get__(None, cls) if hasattr(own, "__get__") else self.own
        if not _is_asked_by_python():
            return self._code_of(error)
        return _noticed(error, lambda: self._code_of(error), self.notice)

    def _code_of(self, error: Any) -> Any:
        own = type(self.own)
        if not hasattr(own, "__set__") and "code" in vars(error):
            return vars(error)["code"]
        return self.own.__get__(error, type(error)) if hasattr(own, "__get__") else self.own

    def __set__(self, error: Any, value: Any) -> None:
        if hasattr(type(self.own), "__set__"):
            self.own.__set__(error, value)
        else:
            vars(error)["code"] = value

    def __delete__(self, error: Any) -> None:
        if hasattr(type(self.own), "__delete__"):
            self.own.__delete__(error)
        elif "code" in vars(error):
            del vars(error)["code"]
        else:
            raise AttributeError("code")


def _noticed_lookup(own: Any, notice: Notice) -> Any:
    @functools.wraps(own)
    def lookup(error: Any, name: str) -> Any:
        if name != "code" or not _is_asked_by_python():
            return own(error, name)
        return _noticed(error, lambda: own(error, name), notice)

    return lookup


def _noticed(error: Any, code_of: Callable[[], Any], notice: Notice) -> Any:
    notice(error, error)  # what Python takes for the code where there is none
    code = code_of()
    notice(error, code)
    return code


def _is_asked_by_python() -> bool:
    """Return whether no frame is above that of the caller."""
    try:
        sys._getframe(2)
    except ValueError:  # the stack is not so deep
        return True
    return False
