"""Compile a program with its own options instead of the process's."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jaxlib
from jax.sharding import Mesh

from outlay.core.error_types import CompilerAbortError, ProgramError
from outlay.core.jax_compat import (
    is_compile_only,
    scatters_wrongly,
    take_packed_arrays,
    without_compilation_cache,
)
from outlay.core.one_line import OneLine
from outlay.core.quantities import counted
from outlay.core.runtime_flags import Value, flag_text, flags_of_library, read_flags, typed_flags, xla_library

if TYPE_CHECKING:
    from outlay.program.compiler_faults import CompilerFault

_DISABLED_PASSES = "xla_disable_hlo_passes"  # with commas between them

MICROBATCHES = "microbatches"
"""The scope that `outlay.train_step` opens around its loop over microbatches, by which the loop is known."""

_ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_UNKNOWN = re.compile(r"No such compile option: '([^']*)'")
_REFUSED = re.compile(r"While setting option|not a valid|[Ii]nvalid value|Could not parse|can't be parsed")
# Before the loop the scope stands alone, or in what was done to it: "jit(step)/transpose(jvp(microbatches))/while"
_OVER_MICROBATCHES = re.compile(rf'\b{MICROBATCHES}\)*/while"')
# The Triton emitter finds no tiles for some shapes, such as heads of 96; cuBLAS has a kernel for any.
_NO_TILES, _WAY_OUT = "Couldn't find output tile sizes", {"xla_gpu_enable_triton_gemm": False}
# Each collective that goes on behind computation takes some of a TPU's memory for signals, which is a kilobyte on v3.
_TO_DISABLE = re.compile(r"Please disable it with (--)?(?P<name>xla_\w+)=false")
_NO_SIGNALS, _BEHIND = "in memory space sflag", "async"
_PIPELINED = "_pipelined_"


@dataclass(frozen=True)
class CompilerOptions(OneLine):
    """Options of the compiler, and where they come from.

    Attributes:
        source: `preset for gpu`, `none`, the file, or `given`.
        values: by name, without dashes.
        notes: what was left out or put in besides, in words.
    """

    source: str = "none"
    values: Mapping[str, Value] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()

    @property
    def is_preset(self) -> bool:
        """Whether Outlay chose them, so that it may leave some out; what a user asked for by name stays."""
        return self.source.startswith("preset")

    def without(self, names: Collection[str], note: str) -> CompilerOptions:
        """Return the options without the given names."""
        remaining = {name: value for name, value in self.values.items() if name not in names}
        return replace(self, values=remaining, notes=(*self.notes, note))

    def avoiding(self, faults: Iterable[CompilerFault]) -> CompilerOptions:
        """Return the options that leave out passes which may compile a wrong program."""
        options = self
        for fault in faults:
            passes = [*filter(None, str(options.values.get(_DISABLED_PASSES, "")).split(","))]
            if fault.disabled_pass in passes:
                continue
            passes.append(fault.disabled_pass)
            note = f"without the pass {fault.disabled_pass}: {fault.what} ({fault.name})"
            options = replace(
                options, values={**options.values, _DISABLED_PASSES: ",".join(passes)}, notes=(*options.notes, note)
            )
        return options

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {"source": self.source, "values": dict(self.values), "notes": list(self.notes)}

    def __str__(self) -> str:
        names = ", ".join(f"{name.removeprefix('xla_')}={flag_text(value)}" for name, value in self.values.items())
        return f"{self.source}{': ' if names else ''}{names}"


RequestedOptions = Mapping[str, Value] | Path | str | CompilerOptions
"""`preset`, `none`, options by name, the name of a file of them, one `--name=value` after another, or a program's."""


def compiler_options(requested: RequestedOptions, mesh: Mesh | None) -> CompilerOptions:
    """Return the requested options for the devices of a mesh.

    A preset leaves out what `XLA_FLAGS` or `LIBTPU_INIT_ARGS` already set. For GPUs it gives the scheduler the memory
    of the pool that JAX takes: as the environment asks, else by default; of absent ones, the most that JAX can take.

    Args:
        requested: `preset`, `none`, options by name, the name of a file of them, or those of another program.
        mesh: the mesh of the devices to compile for; without one a preset is empty.

    Raises:
        ProgramError: there is no such preset, or the file cannot be read.

    >>> compiler_options({"xla_cpu_enable_fast_math": True}, None).values
    {'xla_cpu_enable_fast_math': True}
    """
    if isinstance(requested, CompilerOptions):
        return requested
    if isinstance(requested, Mapping):
        return CompilerOptions("given", {name.removeprefix("--"): value for name, value in requested.items()})
    if requested == "none":
        return CompilerOptions()
    if requested != "preset":
        return CompilerOptions(str(requested), _of_file(Path(requested)))
    kind = mesh.devices.flat[0].platform if mesh is not None else ""
    if not (preset := _presets().get(kind)):
        return CompilerOptions(f"preset for {kind}" if kind else "none")
    set_already = {name for variable in _ENVIRONMENT for name in read_flags(os.environ.get(variable, ""))}
    values = preset
    if mesh is not None and kind == "gpu":
        from outlay.program.scheduler_memory import within_pool

        values = within_pool(values, mesh)
    left_out = [name for name in values if name in set_already]
    remaining = {name: value for name, value in values.items() if name not in set_already}
    notes = (f"set by the environment: {', '.join(left_out)}",) if left_out else ()
    return CompilerOptions(f"preset for {kind}", remaining, notes)


@functools.cache
def _presets() -> dict[str, dict[str, Value]]:
    return tomllib.loads((resources.files("outlay.program") / "xla_presets.toml").read_text(encoding="utf-8"))


def _of_file(path: Path) -> dict[str, Value]:
    from outlay.core.input_file import read_text

    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError as error:
        from outlay.core.suggest import did_you_mean

        raise ProgramError(
            f"there are no compiler options '{path}', and no such file: {did_you_mean(str(path), ('preset', 'none'))}"
            "\n  fix: preset, none, a dictionary of options, or a file with one --name=value a line"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError(
            f"{path}: the compiler options cannot be read: {error}\n  fix: preset, none, or a file of them"
        ) from error
    words = [(number, word) for number, line in enumerate(lines, 1) for word in line.partition("#")[0].split()]
    strange = [f"  line {number}: {word!r}" for number, word in words if not re.match(r"--xla_\w+=", word)]
    if strange:
        raise ProgramError(
            "\n".join(
                [
                    f"{path}: {counted(len(strange), 'word is not an option', 'words are not options')} of XLA",
                    *strange,
                    "  fix: --xla_NAME=VALUE",
                ]
            )
        )
    return typed_flags(" ".join(word for _, word in words))


def compile_with(
    lowered: jax.stages.Lowered, options: CompilerOptions, device: jax.Device | None
) -> tuple[Any, CompilerOptions]:
    """Compile a program with options of its own.

    For a program with microbatches a preset leaves out pipelined collectives: the compiler would peel the loop over
    microbatches as well, and hold the activations of two or three at once.

    If the GPU compiler finds no tiles for a product, it compiles again with products left to cuBLAS; if a TPU has no
    memory for the signals of asynchronous collectives, a preset asks for none. Options of a preset that this compiler
    does not know, or refuses for this generation of a TPU, are left out.

    Args:
        lowered: the program.
        options: the options.
        device: one of the devices to compile for; None if unknown.

    Returns:
        The compiled program, and the options that it was compiled with.

    Raises:
        ProgramError: the compiler does not know an option, or its value; or sums would be wrong at times.
        CompilerAbortError: the compiler ended its process.
    """
    if device is not None and is_compile_only(device):
        from outlay.core.jax_kernels import drop_callbacks

        drop_callbacks(lowered)
    elif device is not None and scatters_wrongly(device.platform):
        _check_scattered_sums(lowered)
    pipelined = [name for name in options.values if _PIPELINED in name]
    if options.is_preset and pipelined and _takes_microbatches(lowered):
        note = "no pipelined collectives: they would hold the activations of several microbatches at once"
        options = options.without(pipelined, note)
    if options.is_preset and device is not None and device.platform != "cpu":
        from outlay.program.compiler_faults import faults_in_reach

        options = options.avoiding(faults_in_reach(lowered, device.platform))
    progress: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if device is not None and device.platform != "cpu":  # for which nothing takes long
        from outlay.program.compile_progress import compile_progress

        progress = compile_progress(lowered, device)
    with without_compilation_cache(device), progress:
        # Each turn leaves out an option or sets one for good, so that this ends.
        while True:
            try:
                values: dict[str, Any] = dict(options.values)
                compiled = lowered.compile(compiler_options=values)
                take_packed_arrays(compiled)
                return compiled, options
            except jax.errors.JaxRuntimeError as error:
                others = _other_options(options, str(error))
                if others is None:
                    if refusal := _refusal(options, str(error), device.platform if device else ""):
                        raise ProgramError(refusal) from error
                    raise
                options = others
            except CompilerAbortError as error:
                from outlay.program.compiler_aborts import abort_error

                raise abort_error(error, lowered) from None


def _other_options(options: CompilerOptions, message: str) -> CompilerOptions | None:
    """Return the options with which to compile again after an error; None if no others would help."""
    if _NO_TILES in message and options.values.get("xla_gpu_enable_triton_gemm") is not False:
        note = "no tiles for a product, so products go to cuBLAS: xla_gpu_enable_triton_gemm=false"
        return replace(options, values={**options.values, **_WAY_OUT}, notes=(*options.notes, note))
    if not options.is_preset:
        return None
    behind, unknown = [name for name in options.values if _BEHIND in name], _UNKNOWN.search(message)
    refused = _TO_DISABLE.search(message)
    if _NO_SIGNALS in message and behind:
        return options.without(behind, "no asynchronous collectives: the device has no memory left for their signals")
    if refused and options.values.get(refused["name"]):
        note = f"this compiler refuses {refused['name']} for this generation"
        return replace(options, values={**options.values, refused["name"]: False}, notes=(*options.notes, note))
    if unknown and unknown[1] in options.values:  # of another version of XLA
        return options.without([unknown[1]], f"this compiler has no {unknown[1]}")
    return None


def _takes_microbatches(lowered: jax.stages.Lowered) -> bool:
    """Return whether the program has a loop over microbatches."""
    return any(
        operation.name == "stablehlo.while" and _OVER_MICROBATCHES.search(str(operation.location))
        for operation in _operations(lowered)
    )


def _operations(lowered: jax.stages.Lowered) -> Iterator[Any]:
    module: Any = lowered.compiler_ir("stablehlo")
    pending = [module.operation]
    while pending:
        operation = pending.pop()
        yield operation
        pending += [one.operation for region in operation.regions for block in region for one in block]


def _check_scattered_sums(lowered: jax.stages.Lowered) -> None:
    """Raise for a program that scatters sums over CPU devices of a job where gloo does that wrongly at times."""
    if any(operation.name == "stablehlo.reduce_scatter" for operation in _operations(lowered)):
        raise ProgramError(
            f"this program scatters sums over CPU devices of a job (jax.lax.psum_scatter, or the gradient of an "
            f"all_gather), and with jaxlib {jaxlib.__version__} gloo gives wrong sums at times, without an error\n"
            "  fix: outlay.collectives.sum_scatter in place of jax.lax.psum_scatter, or jax 0.12"
        )


def _refusal(options: CompilerOptions, message: str, platform: str) -> str:
    """Return what to say of an error of the compiler that is about an option; empty for any other error."""
    where = "" if options.source == "given" else f" ({options.source})"
    unknown = _UNKNOWN.search(message)
    if unknown is None:
        is_about_one = _REFUSED.search(message) and any(name in message for name in options.values)
        fix = "another value, or leave it out"
        return f"the compiler refuses an option{where}: {message}\n  fix: {fix}" if is_about_one else ""
    from outlay.core.suggest import did_you_mean

    library = _library(platform)
    # The name stands in the library's text even where its compiler takes it no longer.
    known = (flags_of_library(library) if library is not None else set()) - {unknown[1]}
    near = f", {did_you_mean(unknown[1], sorted(known))}" if known else ""
    return (
        f"the compiler for {platform or 'these devices'} has no option {unknown[1]}{where}{near}\n"
        "  fix: correct the name, or leave it out; XLA drops and renames options from version to version, "
        f"and this is jaxlib {jaxlib.__version__}"
    )


def _library(platform: str) -> Path | None:
    """Return the library file of a platform's compiler."""
    if platform == "tpu":
        if importlib.util.find_spec("libtpu") is None:
            from outlay.core.compiler_folder import compiler_file

            return compiler_file("tpu")
        import libtpu

        return Path(libtpu.get_library_path())
    if platform != "gpu":
        return xla_library()
    from outlay.core.jax_topologies import gpu_library

    return gpu_library()
