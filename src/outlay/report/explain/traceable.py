"""Trace a jitted function abstractly, and say which argument stands in the way where that fails."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from outlay.core.errors import ExplainError
from outlay.core.paths import flatten_paths

_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
_DEPENDS = re.compile(r"depends on the values? of the arguments? (.+?)\.(?:\s|$)", re.DOTALL)


def trace(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> jax.stages.Traced:
    """The function traced with its arguments as shapes.

    Raises:
        ExplainError: an argument is no array, or the function needs an argument's value.
    """
    try:
        return function.trace(*args, **kwargs)
    except _NEEDS_VALUE as error:
        found = _DEPENDS.search(str(error))
        names = found[1] if found else "an argument"
        raise ExplainError(
            f"{_name(function)} cannot be traced from shapes alone: it needs the value of {names}\n"
            f"  {str(error).splitlines()[0]}\n"
            f"  cure: use jnp and jax.lax.cond instead of Python's if, or make it static: "
            f"jax.jit({_name(function)}, static_argnames={_first(names)!r}) and pass a value"
        ) from error
    except TypeError as error:
        wrong = list(_no_arrays(function, args, kwargs))
        if not wrong or "abstract array" not in str(error):
            raise
        lines = "".join(f"\n  {path}: {what}" for path, what in wrong)
        raise ExplainError(
            f"{len(wrong)} argument(s) of {_name(function)} are no arrays:{lines}\n"
            f"  cure: pass arrays or jax.ShapeDtypeStruct, or make it static: "
            f"jax.jit({_name(function)}, static_argnames={_first(wrong[0][0])!r})"
        ) from error


def _name(function: Any) -> str:
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "f"


def _first(names: str) -> str:
    found = re.search(r"\w+", names)
    return found[0] if found else "name"


def _no_arrays(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Path and type of what JAX cannot see as an array."""
    try:
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        arguments = {**{f"args[{i}]": arg for i, arg in enumerate(args)}, **kwargs}
    for path, leaf in flatten_paths(dict(arguments))[0]:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            try:
                jax.typeof(leaf)
            except TypeError:
                yield path, f"a {type(leaf).__name__}"
