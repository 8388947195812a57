"""Cache compiler output on disk, so that explaining the same program again compiles nothing."""

from __future__ import annotations

import itertools
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jaxlib
from jax.sharding import Mesh

from outlay.analysis.attribution.compiler_output import CompilerOutput
from outlay.analysis.attribution.provenance import is_driver
from outlay.core.disk_cache import key_of
from outlay.core.runtime_flags import versions
from outlay.devices.compile_only import target_of
from outlay.devices.mesh_info import MeshInfo
from outlay.program.compiler_options import CompilerOptions

_FORM = 1
"""The version of the cached format; part of the key, so that a change of `Outcome.to_dict` invalidates old entries."""

_COMPILERS = ("outlay", "libtpu", "jax-cuda13-pjrt", "jax-cuda12-pjrt")
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")

# A function that partitions an operation by itself is in the text as its address, which differs from process to
# process; the operation's name, its rule and its line are there as well.
_ADDRESS = re.compile(r'(@CustomSPMDPartitioning\(.*backend_config = ")\d+"')
_LOCATION = re.compile(r"#(loc\d*) = loc\((.*)\)$")
_LINE = re.compile(r'^"[^"]*":\d+')
_FILE = re.compile(r'"([^"]*)":\d+')
_REFERENCE = re.compile(r"#(loc\d*)\b")


@dataclass(frozen=True)
class Outcome:
    """The result of compiling a program.

    Attributes:
        output: the compiler's output; None if it ran out of memory.
        messages: the known messages that it printed.
        failure: its error if it ran out of memory.
        options: the compiler options that were used; None if it was compiled elsewhere.
    """

    output: CompilerOutput | None = None
    messages: tuple[str, ...] = ()
    failure: str = ""
    options: CompilerOptions | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "output": self.output.to_dict() if self.output else None,
            "messages": list(self.messages),
            "failure": self.failure,
            "options": self.options.to_dict() if self.options else None,
        }

    @classmethod
    def from_dict(cls, data: Any) -> Outcome | None:
        """Read back what `to_dict` gave; None of anything else."""
        try:
            output, options = data["output"], data["options"]
            return cls(
                output=None if output is None else CompilerOutput.from_dict(output),
                messages=tuple(data["messages"]),
                failure=data["failure"],
                options=CompilerOptions(options["source"], options["values"], tuple(options["notes"])),
            )
        except (KeyError, TypeError, ValueError):
            return None


def outcome_key(lowered: jax.stages.Lowered, options: CompilerOptions, mesh: Mesh, *, of_program: bool) -> str:
    """Compute the cache key of a program: a hash of everything that determines the compiler's output.

    Args:
        lowered: the program.
        options: the compiler options.
        mesh: the devices that it is compiled for.
        of_program: whether it is the step of an `outlay.Program`, whose arguments are named after leaves.
    """
    device, target = mesh.devices.flat[0], target_of(mesh)
    return key_of(
        _FORM,
        of_program,
        _ADDRESS.sub(r'\1"', lowered.as_text()),
        *_source_lines(lowered.as_text(debug_info=True)),
        options.source,
        sorted(options.values.items()),
        options.notes,
        MeshInfo.of(mesh).to_dict(),
        target,
        target and target.hardware,
        device.device_kind,
        # XLA compiles for the instruction set and the number of cores of this CPU, so another machine is another key.
        (platform.node(), os.cpu_count()) if device.platform == "cpu" else "",
        jax.__version__,
        jaxlib.__version__,
        versions(_COMPILERS),
        *(() if device.platform == "cpu" else _kept_compilers()),
        [os.environ.get(variable, "") for variable in _FLAGS],
    )


def _kept_compilers() -> list[tuple[str, str]]:
    """List the packages of compilers for absent hardware, with their versions; jaxlib itself compiles for CPUs."""
    from outlay.core.compiler_folder import compiler_versions

    return sorted(compiler_versions().items())


def _source_lines(text: str) -> list[str]:
    """Collect the scopes and source lines of a lowered program's operations, each stack once.

    A stack is cut at the call of `explain`: the same step must have the same key in every script and command.
    """
    locations = {match[1]: match[2] for match in map(_LOCATION.match, text.splitlines()) if match}
    referred = {inner for body in locations.values() for inner in _REFERENCE.findall(body)}
    stacks = (_stack(number, locations) for number in locations if number not in referred)
    return sorted({"\n".join(itertools.takewhile(_is_inside, stack)) for stack in stacks})


def _stack(number: str, locations: Mapping[str, str]) -> list[str]:
    """List the names and lines of a location, innermost first; a function and its line count as one."""
    body = locations.get(number, "")
    inner = [part for other in _REFERENCE.findall(body) for part in _stack(other, locations)]
    if body.startswith("callsite("):
        return inner
    own = _REFERENCE.sub("", body)
    return [f"{own} {inner[0]}"] if len(inner) == 1 and _LINE.search(inner[0]) else [own, *inner]


def _is_inside(part: str) -> bool:
    return not any(map(is_driver, _FILE.findall(part)))
