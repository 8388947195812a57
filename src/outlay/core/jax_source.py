"""Find the source lines that the operations of a traced program come from, and mark what functions return."""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
from jax._src import source_info_util
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from outlay.core.source_owner import OUTLAY, is_below, is_installed, is_standard

_CORE = str(Path(__file__).parent)
_PROGRAM = str(OUTLAY / "program")


@dataclass(frozen=True)
class Frame:
    """A source line in a stack."""

    file: str
    line: int
    function: str


def frames_of_error(error: BaseException, ignoring: tuple[str, ...] = ()) -> list[Frame]:
    """Return the user's source lines that an error came through, innermost first.

    Args:
        error: an error that was raised.
        ignoring: folders of files to skip, besides those of JAX and of this folder.
    """
    stack = reversed(list(traceback.walk_tb(error.__traceback__)))
    frames = [Frame(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in stack]
    return [frame for frame in frames if _is_user_file(frame.file, (_CORE, *ignoring))]


def frames_of_forward_pass(error: BaseException, ignoring: tuple[str, ...] = ()) -> list[Frame]:
    """Return the lines of the operation whose derivative JAX was taking when it raised; empty if it was taking none."""
    cause = error.__cause__
    is_forward = isinstance(cause, source_info_util.JaxStackTraceBeforeTransformation)
    return frames_of_error(cause, ignoring) if is_forward else []


def source_line(eqn: Any) -> str:
    """Return the `file:line` that an operation of a traced program comes from; empty if unknown.

    It is the innermost line of the user's own; of an installed package, such as a library of layers, only where none of
    the user's lies between that and Outlay.
    """
    of_package = ""
    for code, offset in reversed(calls_to(eqn)):
        file = code.co_filename
        if of_package and is_below(file, _PROGRAM):
            break
        if not _is_user_file(file):
            continue
        line = f"{file}:{source_info_util.raw_frame_to_frame(code, offset).start_line}"
        if not (is_installed(file) or is_standard(file)):
            return line
        of_package = of_package or line
    return of_package


def source_line_of_error(error: BaseException) -> str:
    """Return the innermost `file:line` of user code that raised an error; empty if there is none."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((f"{file}:{line}" for file, line in reversed(lines) if _is_user_file(file)), "")


def _is_user_file(file: str, skipped: tuple[str, ...] = (str(OUTLAY),)) -> bool:
    return source_info_util.is_user_filename(file) and not is_below(file, *skipped)


MARK = "outlay_mark"
"""The name of an operation without effect that marks a value in a traced program.

Its parameters are `name`, and `batched`, the dims that `jax.vmap` has added.
"""

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
    """Mark the values that functions return in this thread.

    `jax.checking_leaks` is off within the block: the marks themselves are held until their trace has ended.

    Args:
        name_of: takes the frame of a returning function and its result; returns the values to mark, by name.
    """
    marked: list[Any] = []  # JAX drops an operation whose result nobody references
    before = sys.getprofile()

    def returned(frame: FrameType, event: str, value: Any) -> None:
        if event == "return" and value is not None:
            for name, one in name_of(frame, value).items():
                marked.append(_mark.bind(one, name=name, batched=()))

    sys.setprofile(returned)
    try:
        with jax.check_tracer_leaks(False):
            yield
    finally:
        if before is None or callable(before):
            sys.setprofile(before)
        else:
            before.enable()  # up to Python 3.11 this is a `cProfile.Profile` itself, which `setprofile` does not take


def is_traced(value: Any) -> bool:
    """Return whether a value is one that JAX is tracing."""
    return isinstance(value, Tracer)


Instruction = tuple[CodeType, int]
"""A position in a function: its code, and the offset of the instruction."""


def calls_to(eqn: Any) -> tuple[Instruction, ...]:
    """Return the calls that led to an operation of a traced program, outermost first."""
    stack = eqn.source_info.traceback
    return tuple(reversed(list(zip(*stack.raw_frames(), strict=True)))) if stack else ()


def is_of_a_derivative(eqn: Any) -> bool:
    """Return whether an operation comes from differentiating another one, whose source line it carries."""
    return "jvp(" in str(eqn.source_info.name_stack)


def scopes_of(eqn: Any) -> tuple[str, ...]:
    """Return the names that `jax.named_scope` has given to an operation, outermost first."""
    parts = eqn.source_info.name_stack.stack
    return tuple(name for part in parts if isinstance(part, source_info_util.Scope) for name in part.name.split("/"))


@functools.lru_cache(maxsize=65536)
def line_of(instruction: Instruction) -> int:
    """Return the line of an instruction, the first if it spans several; 0 if unknown."""
    code, offset = instruction
    # Offsets count bytes, `co_positions` yields one entry for each code unit of two bytes.
    return _lines(code)[offset // 2] if 0 <= offset // 2 < len(_lines(code)) else 0


@functools.lru_cache(maxsize=4096)
def _lines(code: CodeType) -> list[int]:
    return [position[0] or 0 for position in code.co_positions()]
