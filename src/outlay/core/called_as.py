"""A function whose wrong calls are answered with the call to write, instead of Python's count of arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from outlay.core.error_types import ArgumentError

Params = ParamSpec("Params")
T = TypeVar("T")


def called_as(example: str, **renamed: str) -> Callable[[Callable[Params, T]], Callable[Params, T]]:
    """Return a decorator: a call that does not fit the function's parameters raises an error with the call to write.

    Nothing is checked before the call: Python's own refusal is replaced.

    Args:
        example: a call that works.
        **renamed: parameters that other libraries have, each with what to write here.

    >>> @called_as("double(number=2)", value="number=")
    ... def double(*, number):
    ...     return 2 * number
    >>> double(value=2)
    Traceback (most recent call last):
    ...
    outlay.errors.ArgumentError: double() has no parameter 'value'
      fix: number=
    """

    def decorate(function: Callable[Params, T]) -> Callable[Params, T]:
        @functools.wraps(function)
        def call(*args: Params.args, **kwargs: Params.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                # Deeper than this frame alone, the call was right and something in it failed.
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise
                raise ArgumentError(refusal(function, args, kwargs, example, renamed, str(error))) from None

        return call

    return decorate


def refusal(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    example: str,
    renamed: dict[str, str],
    python: str,
) -> str:
    """Return what is wrong with a call, and the call to write; `python` are Python's own words."""
    from outlay.core.suggest import did_you_mean

    name = function.__qualname__.removesuffix(".__init__").rpartition("<locals>.")[2]
    parameters = dict(inspect.signature(function).parameters)
    args = args[1:] if parameters.pop("self", None) else args
    if unknown := [each for each in kwargs if each not in parameters]:
        fixes = [renamed.get(each) or did_you_mean(each, parameters) for each in unknown]
        return f"{name}() has no parameter {', '.join(map(repr, unknown))}\n  fix: {'; '.join(fixes)}"
    most = sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters.values())
    if len(args) > most:
        given = f"{len(args)} arguments were given by position" if len(args) > 1 else "1 argument was given by position"
        return f"{name}() takes {most or 'none'} by position, and {given}\n  fix: {example}"
    missing = [
        each.name
        for each in [*parameters.values()][len(args) :]
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    lacks = ", ".join(each for each in missing if each not in kwargs)
    return f"{name}() lacks {lacks}\n  fix: {example}" if lacks else f"{python}\n  fix: {example}"
