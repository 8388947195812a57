"""Values that hold in a block, such as what a name means while a step is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give a variable a value in a block.

    >>> count = ContextVar("count", default=0)
    >>> with within(count, 1):
    ...     count.get()
    1
    >>> count.get()
    0
    """
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
