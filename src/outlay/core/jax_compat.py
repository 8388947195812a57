"""Every use of JAX that is private or differs between the supported versions, one function each, each with a test."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from jax._src import source_info_util, xla_bridge
from jax.extend.core import Primitive


def backend_is_started() -> bool:
    """Whether JAX has created its backend, after which the number of devices is fixed. Does not create it."""
    return xla_bridge.backends_are_initialized()


@dataclass(frozen=True)
class Frame:
    """A place in somebody's source; `columns`, from and to, tell two calls on one line apart."""

    file: str
    line: int
    columns: tuple[int, int]
    function: str


def user_frames(ignoring: tuple[str, ...] = ()) -> list[Frame]:
    """The places outside JAX that lead to the operation being traced, innermost first.

    For an operation of a backward pass: those of the forward operation that it comes from, where JAX knows them.

    Args:
        ignoring: how the paths of files begin that are nobody's source.
    """
    ignored = (__file__, *ignoring)

    def wanted(code: CodeType) -> bool:
        file = code.co_filename
        return source_info_util.is_user_filename(file) and not file.startswith(ignored)

    forward = source_info_util._source_info_context.context.traceback
    places = list(zip(*forward.raw_frames(), strict=True)) if forward else []
    # A traceback of JAX is cut off where an inner jitted function begins; the stack itself reaches its caller.
    if not any(wanted(code) for code, _ in places):
        places = [(frame.f_code, frame.f_lasti) for frame in _stack()]
    found = [source_info_util.raw_frame_to_frame(code, offset) for code, offset in places if wanted(code)]
    return [Frame(f.file_name, f.start_line, (f.start_column, f.end_column), f.function_name) for f in found]


def _stack() -> Iterator[FrameType]:
    frame = sys._getframe()
    while frame := frame.f_back:
        yield frame


def in_backward_pass() -> bool:
    """Whether the operation being traced comes from transposing another one."""
    return "transpose" in str(source_info_util.current().name_stack)


@contextlib.contextmanager
def intercepting(intercept: Callable[..., Any]) -> Iterator[None]:
    """Have `intercept(primitive, bind, args, params)` stand in for every operation that this thread traces.

    Args:
        intercept: returns what `bind(*args, **params)` would: the operation's results.
    """
    original, thread = Primitive.bind, threading.get_ident()

    def bind(self: Primitive, *args: Any, **params: Any) -> Any:
        plainly = functools.partial(original, self)
        if threading.get_ident() != thread:
            return plainly(*args, **params)
        return intercept(self, plainly, args, params)

    Primitive.bind = bind
    try:
        yield
    finally:
        Primitive.bind = original
