"""What a frame of Python calls while it stands there, such as a function that waits in compiled code."""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import linecache
from types import FrameType


def called_by(frame: FrameType) -> tuple[object, ...]:
    """Return what a frame calls at its instruction, and whose it is; nothing where it calls what has no name.

    Names are looked up as they are, so that no code of the program runs: `step(x)`, `self.step(x)`, `losses.mean(x)`.

    Args:
        frame: a frame of a thread that stands still.
    """
    positions = frame.f_code.co_positions()
    line, end, start, stop = next(itertools.islice(positions, frame.f_lasti // 2, None), (None, None, None, None))
    if line is None or line != end:  # a call over several lines has no place that is as sure
        return ()
    text = linecache.getline(frame.f_code.co_filename, line).encode()[start:stop].decode(errors="replace")
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return ()
    return _named(call.func, frame) if isinstance(call, ast.Call) else ()


def _named(name: ast.expr, frame: FrameType) -> tuple[object, ...]:
    """Return what a name stands for, and the object that it is an attribute of."""
    if isinstance(name, ast.Name):
        places = (frame.f_locals, frame.f_globals, vars(builtins))
        return next(((place[name.id],) for place in places if name.id in place), ())
    if isinstance(name, ast.Attribute) and (owner := _named(name.value, frame)[:1]):
        value = inspect.getattr_static(owner[0], name.attr, None)
        return (value.__func__ if isinstance(value, staticmethod) else value, *owner)
    return ()
