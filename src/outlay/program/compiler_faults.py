"""Known faults of compilers: which programs they may compile otherwise than they should, and the pass to leave out."""

from __future__ import annotations

import functools
import importlib.metadata
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jax


@dataclass(frozen=True)
class CompilerFault:
    """A pass that may compile a wrong program, or one that does less than was asked.

    Attributes:
        name: the public report, or where it is described.
        what: what goes wrong, in words.
        disabled_pass: the pass.
        mended_in_jaxlib: the first version of jaxlib whose compilers are right; empty if there is none.
        in_loops: an operation that such a program has inside of a loop; empty for any.
        dtype: a part of the name of a dtype that it has; empty for any.
        platform: the platform whose compiler has the fault; empty for all.
    """

    name: str
    what: str
    disabled_pass: str
    mended_in_jaxlib: str = ""
    in_loops: str = ""
    dtype: str = ""
    platform: str = ""


@functools.cache
def known_faults() -> tuple[CompilerFault, ...]:
    """Return the faults of the compilers of this version of jaxlib that make wrong programs.

    Examples:
        >>> all(fault.disabled_pass for fault in known_faults())
        True
    """
    return _of_this_jaxlib("fault")


def _of_this_jaxlib(kind: str) -> tuple[CompilerFault, ...]:
    text = files("outlay.program").joinpath("compiler_faults.toml").read_text(encoding="utf-8")
    listed = [CompilerFault(**entry) for entry in tomllib.loads(text)[kind]]
    installed = _numbers(importlib.metadata.version("jaxlib"))
    return tuple(one for one in listed if not one.mended_in_jaxlib or installed < _numbers(one.mended_in_jaxlib))


def faults_in_reach(lowered: jax.stages.Lowered, platform: str) -> tuple[CompilerFault, ...]:
    """Return what is known to change a program, by the operations inside of its loops, and by its dtypes.

    Args:
        lowered: the program.
        platform: the platform that it is compiled for.
    """
    listed = [one for one in (*known_faults(), *_of_this_jaxlib("shortfall")) if one.platform in ("", platform)]
    text = lowered.as_text() if any(one.dtype for one in listed) else ""
    operations = _operations_in_loops(lowered) if any(one.in_loops for one in listed) else set[str]()
    return tuple(one for one in listed if one.dtype in text and (not one.in_loops or one.in_loops in operations))


def _operations_in_loops(lowered: jax.stages.Lowered) -> set[str]:
    """Return the names of operations that run inside of loops, in functions that loops call as well."""
    module: Any = lowered.compiler_ir("stablehlo")
    functions: dict[str, Any] = {}
    pending = [(module.operation, False)]
    inside: set[str] = set()
    called: set[str] = set()
    while pending:
        operation, is_inside = pending.pop()
        if operation.name == "func.func":
            functions[operation.attributes["sym_name"].value] = operation
        if is_inside:
            inside.add(operation.name)
        if is_inside and operation.name == "func.call":
            called.add(operation.attributes["callee"].value)
        is_inside = is_inside or operation.name == "stablehlo.while"
        pending += [(one.operation, is_inside) for region in operation.regions for block in region for one in block]
        if not pending and called:
            pending = [(functions[name], True) for name in called if name in functions]
            for name in called:
                functions.pop(name, None)
            called = set()
    return inside


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
