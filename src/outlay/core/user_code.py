"""Find the code that is the user's own: not in the standard library, an installed package, or Outlay."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass

from outlay.core.source_owner import is_installed, is_of_package, is_standard, part_of_outlay

_JAX = ("jax", "jaxlib")


@dataclass(frozen=True)
class Call:
    """A line of the user's code.

    Attributes:
        file: the file it is in.
        line: its line number.
        function: the function around it, `<module>` at top level.
        code: the text of the line; empty where the source cannot be read.
    """

    file: str
    line: int
    function: str
    code: str

    def __str__(self) -> str:
        where = "at top level" if self.function == "<module>" else f"in {self.function}"
        return f"{self.file}:{self.line} {where}" + (f": {self.code}" if self.code else "")


def user_call(stack: traceback.StackSummary) -> Call | None:
    """Return the innermost frame of the user's own code."""
    for frame in reversed(stack):
        if not is_library(frame.filename):
            return Call(frame.filename, frame.lineno or 0, frame.name, frame.line or "")
    return None


def users_traceback(error: BaseException, files: frozenset[str] = frozenset()) -> str | None:
    """Format an error as Python does, from the user's own code on; None if it did not pass through any.

    Frames before the user's code and inside JAX are left out; frames of other libraries called by the user's code stay.

    Args:
        error: the error.
        files: files that count as the user's wherever they are, such as a recipe in an installed package.
    """
    shown = traceback.TracebackException.from_exception(error)
    if not any(_is_users(frame.filename, files) for frame in shown.stack):
        return None
    one: traceback.TracebackException | None = shown
    while one is not None:
        # JAX attaches its own, longer view of the same stack as the cause of the error.
        if one.__cause__ is not None and "".join(one.__cause__.format_exception_only()).startswith(JAX_CAUSES):
            one.__cause__ = None
            one.__suppress_context__ = True
        one.stack = _trimmed(one.stack, files)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return "".join(shown.format()).replace(_JAX_NOTE, "").rstrip()


JAX_CAUSES = (
    "jax._src.source_info_util.JaxStackTraceBeforeTransformation",
    "jax._src.traceback_util.UnfilteredStackTrace",
    "jax.errors.SimplifiedTraceback",
)
"""What JAX attaches to an error as its cause, and prints after it; names in texts, since JAX is not imported here."""
_JAX_NOTE = (
    "--------------------\nFor simplicity, JAX has removed its internal frames from the traceback of the following "
    "exception. Set JAX_TRACEBACK_FILTERING=off to include these.\n"
)


def _trimmed(stack: traceback.StackSummary, files: frozenset[str]) -> traceback.StackSummary:
    frames = list(stack)
    first = next((i for i, frame in enumerate(frames) if _is_users(frame.filename, files)), len(frames))
    rest = (frame for frame in frames[first:] if not any(is_of_package(frame.filename, name) for name in _JAX))
    return traceback.StackSummary.from_list(list(rest))


def _is_users(file: str, files: frozenset[str]) -> bool:
    return file in files or not (file.startswith("<") or is_library(file))


def imported_files() -> list[str]:
    """Return the files of all modules that are imported now."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [file for file in files if isinstance(file, str)]


def is_library(file: str) -> bool:
    """Return whether a file belongs to the standard library, an installed package, or Outlay."""
    return part_of_outlay(file) is not None or is_installed(file) or is_standard(file)
