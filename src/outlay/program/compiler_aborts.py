"""Explain that a compiler aborted: at which line of the program, and what to change."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from typing import Any

import jax

from outlay.core.error_types import CompilerAbortError
from outlay.core.user_code import is_library

_OP_NAME = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r'"([^"]+\.py)":(\d+)')
_FROM_OUTSIDE = ("SIGTERM", "SIGKILL", "SIGHUP", "SIGINT")
"""How the last words begin if nothing in the program ended the compiler."""
_DETAILS = re.compile(r", (?:metadata|backend_config)=.*", re.DOTALL)


def abort_error(error: CompilerAbortError, lowered: jax.stages.Lowered) -> CompilerAbortError:
    """Return the error with the line of the operation that the compiler names, if it names one.

    Args:
        error: the error, with the compiler's last words.
        lowered: the program that it compiled.
    """
    words = _DETAILS.sub("", str(error))
    if words.startswith(_FROM_OUTSIDE):
        from_outside = CompilerAbortError(
            f"the compiler of TPUs was ended from outside while it compiled this program\n  {words}\n"
            "  fix: compile it again; after SIGKILL see first whether the machine had memory left"
        )
        from_outside.is_from_outside = True
        return from_outside
    name = _OP_NAME.search(str(error))
    line = _line_of(name[1], lowered) if name else None
    where = f" at {line}" if line else ""
    there = "there" if line else "of the operation that it names"
    return CompilerAbortError(
        f"the compiler of TPUs ended its process on this program{where}\n"
        f"  {words}\n"
        f"  fix: it is a fault of the compiler ({_version()}): another dtype {there}, or another number of examples on "
        "a device, avoids most of them; or install another version of libtpu"
    )


def _line_of(op_name: str, lowered: jax.stages.Lowered) -> str | None:
    """Return the innermost line of the user's, else of Outlay's, of an operation of this name."""
    module: Any = lowered.compiler_ir("stablehlo")
    for operation in _operations(module.operation):
        location = str(operation.location)
        if f'"{op_name}"' in location:
            frames = [(file, number) for file, number in _FRAME.findall(location)]
            users = [frame for frame in frames if not is_library(frame[0])]
            if chosen := users or frames:
                return ":".join(chosen[0])
    return None


def _operations(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region:
            for one in block:
                yield one.operation
                yield from _operations(one.operation)


def _version() -> str:
    try:
        return f"libtpu {importlib.metadata.version('libtpu')}"
    except importlib.metadata.PackageNotFoundError:  # installed by `outlay compiler tpu`
        return "libtpu"
