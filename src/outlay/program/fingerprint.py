"""What a process is about to run, in a form that other processes can compare with theirs."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import inspect
import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

import outlay
from outlay.core.paths import flatten_paths
from outlay.core.runtime_flags import versions

if TYPE_CHECKING:
    from outlay.program.program import Program

_PACKAGE = str(Path(outlay.__file__).parent)
_LONGEST = 1 << 20  # characters of a packed program that are sent to be compared line by line
# A callback is pinned to one device of the process that lowers it, so this differs where nothing is wrong.
_PINNED = re.compile(r"^.*sdy\.mesh @maximal_mesh_\d+ = .*\n|(?<=@maximal_mesh_)\d+", re.MULTILINE)
# Where something is written, or how many devices and threads a process has: no number depends on them.
_OWN_OF_A_PROCESS = re.compile(r"dump|_dir$|_path$|cache|host_platform_device_count|multi_thread|_threads$|log_")
_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_exec_time_optimization_effort",
)
_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "TF32_OVERRIDE", "ROCBLAS_USE_HIPBLASLT")


@dataclass(frozen=True)
class Facts:
    """What a process is about to run.

    Attributes:
        config: by name, what was chosen.
        data: by path, dtype and shape of the leaves of state and batch.
        program: the lowered program.
        where: file and line of its function.
    """

    config: Mapping[str, str]
    data: Mapping[str, str]
    program: str
    where: str

    @functools.cached_property
    def hashes(self) -> dict[str, str]:
        """A short hash of each."""
        texts = {"config": json.dumps(self.config), "data": json.dumps(self.data), "program": self.program}
        return {kind: hashlib.sha256(text.encode()).hexdigest()[:12] for kind, text in texts.items()}

    def to_json(self) -> str:
        """For another process; a program that is too long to be sent is left out."""
        packed = base64.b85encode(zlib.compress(self.program.encode())).decode()
        return json.dumps(asdict(self) | {"program": packed if len(packed) < _LONGEST else ""})

    @classmethod
    def from_json(cls, text: str) -> Facts:
        """What another process has sent."""
        found = json.loads(text)
        packed = found["program"]
        return cls(**found | {"program": zlib.decompress(base64.b85decode(packed)).decode() if packed else ""})


def facts_of(program: Program, config: Mapping[str, Any]) -> Facts:
    """What a process is about to run.

    Args:
        program: the program.
        config: what else was chosen, by name; a PRNG key among them counts by what it holds.
    """
    own = {
        "mode": program.mode,
        "mesh": program.plan.mesh,
        "compiler options": program.compiler_options,
        **{f"rule {number}": rule for number, rule in enumerate(program.layout, 1)},
        **{f"version of {package}": version for package, version in versions(("outlay", "jax", "jaxlib")).items()},
        **_of_the_compiler(os.environ),
    }
    leaves = flatten_paths({"state": program.state_shapes, "batch": program.batch_shapes})[0]
    return Facts(
        {name: _shown(value) for name, value in (dict(config) | own).items()},
        {path: f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves},
        same_everywhere("".join(part.as_text() for part in program.lowered_parts)),
        where_is(program.step),
    )


def _of_the_compiler(environment: Mapping[str, str]) -> dict[str, str]:
    """What changes numbers without a trace in the program: options of XLA and of JAX, the flags one by one."""
    flags = {
        f"{variable} {name}": value or "set"
        for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
        for name, _, value in (flag.partition("=") for flag in sorted(environment.get(variable, "").split()))
        if not _OWN_OF_A_PROCESS.search(name)
    }
    options = {name: str(jax.config.values.get(name)) for name in _OPTIONS}
    variables = {name: environment[name] for name in _VARIABLES if name in environment}
    return flags | options | variables


def same_everywhere(lowered: str) -> str:
    """The text of a lowered program without what differs from process to process in one and the same program."""
    return _PINNED.sub("", lowered)


def where_is(step: Callable[..., Any]) -> str:
    """File and line of a step: of the user's function in it where the step is Outlay's own."""
    while isinstance(step, functools.partial):
        step = step.func
    reached, functions = [inspect.unwrap(step)], []
    while reached:
        value = reached.pop(0)
        if hasattr(value, "__code__") and value not in functions:
            functions.append(value)
            reached += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        elif dataclasses.is_dataclass(value) and type(value).__module__.startswith("outlay."):
            reached += list(vars(value).values())  # what a step of Outlay's own keeps the user's functions in
    users = [one.__code__ for one in functions if not one.__code__.co_filename.startswith(_PACKAGE)]
    return f"{users[0].co_filename}:{users[0].co_firstlineno}" if users else type(step).__name__


def _shown(value: Any) -> str:
    if not isinstance(value, jax.Array):
        return str(value)
    if not value.is_fully_addressable:  # it is global, so the same in all
        return ""
    return str(jax.random.key_data(value) if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) else value)
