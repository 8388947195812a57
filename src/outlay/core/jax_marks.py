"""Marks on the values that functions return while JAX traces them, and where in the source an operation comes from.

A mark is an operation without effect, which the traced program keeps beside the value. It reads what JAX keeps in
`source_info`, and is apart from `jax_compat` for its length alone.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

MARK = "outlay_mark"
"""The name of the operation: its parameters are `name`, and `batched`, the dims that `jax.vmap` has added."""

_mark = Primitive(MARK)
_mark.def_impl(lambda x, **_: x)
_mark.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(_mark, lambda _, x, **__: [x])


def _mark_batched(values: Any, dims: Any, *, name: str, batched: tuple[int, ...]) -> Any:
    (value,), (dim,) = values, dims
    moved = tuple(other + (other >= dim) for other in batched)
    return _mark.bind(value, name=name, batched=(dim, *moved)), dim


def _mark_differentiated(primals: Any, tangents: Any, **params: Any) -> Any:
    return _mark.bind(*primals, **params), tangents[0]


batching.primitive_batchers[_mark] = _mark_batched
ad.primitive_jvps[_mark] = _mark_differentiated


@contextlib.contextmanager
def marking_returns(name_of: Callable[[FrameType, Any], dict[str, Any]]) -> Iterator[None]:
    """Have this thread mark what functions return, as far as they are told to.

    Within this, `jax.checking_leaks` looks for nothing: the marks themselves are held until their trace has ended.

    Args:
        name_of: given the frame of a function that returns and what it returns, the values to mark by their names.
    """
    kept: list[Any] = []  # JAX drops an operation whose result nobody holds
    before = sys.getprofile()

    def returned(frame: FrameType, event: str, value: Any) -> None:
        if event == "return" and value is not None:
            for name, one in name_of(frame, value).items():
                kept.append(_mark.bind(one, name=name, batched=()))

    sys.setprofile(returned)
    try:
        with jax.check_tracer_leaks(False):
            yield
    finally:
        if before is None or callable(before):
            sys.setprofile(before)
        else:
            before.enable()  # a cProfile.Profile, up to Python 3.11


def is_traced(value: Any) -> bool:
    """Whether a value is one that JAX is tracing."""
    return isinstance(value, Tracer)


Step = tuple[CodeType, int]
"""A place in a function: its code, and the offset of the instruction."""


def calls_to(eqn: Any) -> tuple[Step, ...]:
    """The calls that led to an operation of a traced program, outermost first."""
    stack = eqn.source_info.traceback
    return tuple(reversed(list(zip(*stack.raw_frames(), strict=True)))) if stack else ()


def is_of_a_derivative(eqn: Any) -> bool:
    """Whether an operation was made by differentiating another one, whose source line it bears."""
    return "jvp(" in str(eqn.source_info.name_stack)


@functools.lru_cache(maxsize=65536)
def line_of(step: Step) -> int:
    """The line of a place, the first of those that its instruction stands on; 0 where it is not known."""
    code, offset = step
    return _lines(code)[offset // 2] if 0 <= offset // 2 < len(_lines(code)) else 0


@functools.lru_cache(maxsize=4096)
def _lines(code: CodeType) -> list[int]:
    return [position[0] or 0 for position in code.co_positions()]
