"""Values of an earlier trace that a step still uses: named where they are kept, before anything is planned.

A function that JAX traces computes with tracers, which mean nothing once the trace has ended. A model's static part
that is stored while `init` is traced holds such values, and so does whatever `nonlocal`, a list or an attribute keeps.
"""

from __future__ import annotations

import collections
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_tracing import is_tracing, made_at
from outlay.core.quantities import counted

_WITHOUT_CONTENTS = (str, bytes, int, float, complex, type(None), type, Tracer, jax.Array, np.ndarray)
_MOST_SEARCHED = 20_000
"""Objects that are looked through to find where a value is kept."""


def check_no_leaked_values(jaxpr: Any, step: Callable[..., Any], what: str) -> None:
    """Raise if a traced step uses values of a trace that has ended.

    Args:
        jaxpr: the trace of the step; None where there is none.
        step: the step, which reaches what keeps the values.
        what: the step, for the message.

    Raises:
        ProgramError: with every such value: its type, the line that made it, and the variable that keeps it.
    """
    leaked = {id(value): value for value in getattr(jaxpr, "consts", ()) if isinstance(value, Tracer)}
    if not leaked or is_tracing():
        return
    keepers = _places(step, leaked)
    problems = [
        Problem(
            "leaked value",
            keepers.get(number, "in a place that was not found"),
            f"{value.aval.str_short()}{_creation_line(value)}, in a trace that has ended",
            "return it as part of the state, or make it where it is used; of a model keep what is no array: "
            "eqx.partition(model, eqx.is_array), nnx.split(model), or make the model once outside of init",
        )
        for number, value in leaked.items()
    ]
    head = (
        f"{what} uses {counted(len(problems), 'value')} that another function kept while JAX traced it, such as init:"
    )
    raise ProgramError(head, problems)


def _creation_line(value: Any) -> str:
    line = made_at(value)
    return f", made at {line}" if line else ""


def _places(step: Any, leaked: Mapping[int, Any]) -> dict[int, str]:
    """Return what keeps each value, found breadth first from the step: its closures, globals and their contents."""
    places: dict[int, str] = {}
    queue, seen = collections.deque([("step", step)]), {id(step)}
    while queue and len(seen) < _MOST_SEARCHED and len(places) < len(leaked):
        name, value = queue.popleft()
        for inner_name, inner in _contents(name, value):
            if id(inner) in leaked:
                places.setdefault(id(inner), inner_name)
            if id(inner) not in seen and not isinstance(inner, _WITHOUT_CONTENTS):
                seen.add(id(inner))
                queue.append((inner_name, inner))
    return places


def _contents(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, each with the expression that reaches it; what it wraps has its own name."""
    if isinstance(value, FunctionType):
        yield from _of_function(name, value)
    elif isinstance(value, MethodType):
        yield from ((f"{name}.__self__", value.__self__), (name, value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((name, value.func), *((f"{name}.args[{i}]", one) for i, one in enumerate(value.args)))
        yield from value.keywords.items()
    elif isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", one) for key, one in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset | collections.deque):
        fields = getattr(value, "_fields", None)
        yield from ((f"{name}.{fields[i]}" if fields else f"{name}[{i}]", one) for i, one in enumerate(value))
    elif not isinstance(value, ModuleType | CodeType):
        held = dict(getattr(value, "__dict__", {}))
        slots = [slot for base in type(value).__mro__ for slot in getattr(base, "__slots__", ())]
        held |= {slot: getattr(value, slot) for slot in slots if isinstance(slot, str) and hasattr(value, slot)}
        yield from ((name if key == "__wrapped__" else f"{name}.{key}", one) for key, one in held.items())


def _of_function(function_name: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function reaches by name: what it wraps, variables around it, globals that it reads, defaults."""
    if (wrapped := getattr(function, "__wrapped__", None)) is not None:
        yield function_name, wrapped
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        yield name, function.__globals__[name]
    signature = inspect.signature(function, follow_wrapped=False).parameters.values()
    yield from ((one.name, one.default) for one in signature if one.default is not one.empty)


def _names(code: CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*map(_names, inner))
