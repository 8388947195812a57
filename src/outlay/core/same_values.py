"""Whether two values that are not arrays are the same; functions are compared by what they do."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

_EMPTY = object()


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, comparing functions by their code and what they have closed over.

    A model that is created twice has two function objects for one lambda of its source, and an optimizer has new ones
    in each place. Compared by identity, they would make its two trees different structures.

    >>> is_same([lambda x: x + step for step in (1, 2)][0], lambda x: x), is_same((1, "a"), (1, "a"))
    (False, True)
    """
    return _is_same(one, other, set())


def _is_same(one: Any, other: Any, compared: set[tuple[int, int]]) -> bool:
    """Compare two values; pairs in `compared` are being compared further up, as for a function that calls itself."""
    if one is other or (id(one), id(other)) in compared:
        return True
    if type(one) is not type(other):
        return False
    compared.add((id(one), id(other)))
    if (parts := _parts(one)) is not None:
        others = _parts(other) or ()
        return len(parts) == len(others) and all(_is_same(a, b, compared) for a, b in zip(parts, others, strict=True))
    try:
        return bool(one == other)
    except (TypeError, ValueError):  # arrays say of each number whether it is equal
        return False


def _parts(value: Any) -> tuple[Any, ...] | None:
    """Return what decides whether a value is another one; None for what has an equality of its own."""
    if isinstance(value, FunctionType):
        return (value.__code__, value.__defaults__, value.__kwdefaults__, *_closed_over(value))
    if isinstance(value, MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, functools.partial):
        return (value.func, value.args, value.keywords)
    if isinstance(value, list | tuple):
        return tuple(value)
    if isinstance(value, dict):
        return (tuple(value), *value.values())
    if callable(value) and not isinstance(value, type) and (wrapped := getattr(value, "__wrapped__", None)) is not None:
        return (wrapped,)  # a jitted function
    return None


def _closed_over(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet set
            yield _EMPTY
