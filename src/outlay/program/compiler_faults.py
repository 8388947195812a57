"""Known faults of compilers: which programs they may compile wrongly, and the pass that is then left out."""

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
    """A pass that may compile a wrong program.

    Attributes:
        name: the public report.
        what: what goes wrong, in words.
        disabled_pass: the pass.
        mended_in_jaxlib: the first version of jaxlib whose compilers are right.
        in_loops: an operation that such a program has inside of a loop.
    """

    name: str
    what: str
    disabled_pass: str
    mended_in_jaxlib: str
    in_loops: str


@functools.cache
def known_faults() -> tuple[CompilerFault, ...]:
    """Return the faults of the compilers of this version of jaxlib.

    Examples:
        >>> all(fault.disabled_pass for fault in known_faults())
        True
    """
    text = files("outlay.program").joinpath("compiler_faults.toml").read_text(encoding="utf-8")
    listed = [CompilerFault(**entry) for entry in tomllib.loads(text)["fault"]]
    installed = _numbers(importlib.metadata.version("jaxlib"))
    return tuple(fault for fault in listed if installed < _numbers(fault.mended_in_jaxlib))


def faults_in_reach(lowered: jax.stages.Lowered) -> tuple[CompilerFault, ...]:
    """Return the known faults that may change a program, by the operations inside of its loops."""
    faults = known_faults()
    operations = _operations_in_loops(lowered) if faults else set()
    return tuple(fault for fault in faults if fault.in_loops in operations)


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
