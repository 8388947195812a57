"""Compile or read what `outlay.explain` gets: a program, a function, a `jax.stages` object, or saved text."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from outlay.analysis.attribution.compiler_output import CompilerOutput
from outlay.analysis.findings.compiler_messages import is_message, watching
from outlay.core.array_leaves import arrays_only, as_model
from outlay.core.disk_cache import DiskCache
from outlay.core.error_types import ExplainError
from outlay.core.input_file import read_text
from outlay.core.jax_compat import is_compile_only, source_lines_may_be_of_another, without_compilation_cache
from outlay.core.jax_tracing import fresh_traces
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted
from outlay.core.traced_flops import TracedWork, traced_work
from outlay.devices.compile_only import target_of
from outlay.program.compiler_options import RequestedOptions, compile_with, compiler_options
from outlay.program.program import Program
from outlay.report.explain.compiler_cache import Outcome, outcome_key

HLO_ENDINGS = (".txt", ".hlo")
"""File name endings of compiled programs saved as text."""


@dataclass(frozen=True, kw_only=True)
class ExplainedProgram(Outcome):
    """A compiled program, what its compiler returned, and what else is known about it.

    Attributes:
        name: a description for the report.
        mesh: the mesh that it is partitioned over, if known.
        program: the `outlay.Program` that it was compiled from, if any.
        jaxpr: the traced program, if available.
        traced: the work counted in the traced function, for all devices together.
        seconds: the compile time; None if it was compiled before.
        trace_seconds: the time of tracing and lowering it; None if it was lowered before.
        notes: what could not be determined, in words.
        from_cache: whether the compiler's output was read from the cache.
    """

    name: str
    mesh: Mesh | AbstractMesh | None = None
    program: Program | None = None
    jaxpr: Any = None
    traced: TracedWork | None = None
    seconds: float | None = None
    trace_seconds: float | None = None
    notes: tuple[str, ...] = ()
    from_cache: bool = False


_ON_PIECES = (
    "the step calls collectives itself and is defined on the shards of a device only: its work on whole arrays is not "
    "counted"
)
_SEEN_BEFORE = "compiled earlier: the compiler's messages were not recorded"


def compile_or_read(
    x: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    mesh: Mesh | AbstractMesh | None,
    options: RequestedOptions,
    cache: DiskCache | None,
) -> ExplainedProgram:
    """Compile the subject, or read the compiler's output from the cache; nothing runs.

    Raises:
        ExplainError: the object cannot be explained, cannot be traced with these arguments, or the compiler rejects it
            for another reason than memory.
    """
    is_stage = isinstance(x, (Program, jax.stages.Traced))
    if not is_stage and hasattr(x, "lower") and callable(x) and not hasattr(x, "trace"):
        return _of_function(_over_arrays(x), arrays_only(args), arrays_only(kwargs), mesh, options, cache)
    if (args or kwargs) and not hasattr(x, "trace"):
        what = f"arguments are for a jitted function; {_kind(x)} has its own"
        fix = "Path('page.html').write_text(outlay.explain(program).to_html())" if "html" in kwargs else None
        raise ExplainError(f"{what}\n  fix: {fix or _without_arguments(x, args)}")
    if options != "preset" and not hasattr(x, "lower"):
        raise ExplainError(
            f"compiler options are for what is yet to be compiled; {_kind(x)} has its own, or is compiled"
        )
    if isinstance(x, Program):
        return _of_program(x, cache)
    if isinstance(x, jax.stages.Compiled):
        output = CompilerOutput.of(x, of_program=False)
        return ExplainedProgram(
            name="a compiled function", output=output, mesh=mesh or _mesh_of(x), notes=(_SEEN_BEFORE,)
        )
    if isinstance(x, jax.stages.Lowered):
        return _compile(ExplainedProgram(name="a lowered function", mesh=mesh), lambda: x, options, cache)
    if isinstance(x, jax.stages.Traced):
        return _of_traced(x.fun_name, x, mesh, options, cache)
    if isinstance(x, Path):
        return _of_file(x, mesh)
    if isinstance(x, str) and x.isidentifier():  # the name of a recipe, more likely than a program
        raise ExplainError(
            f"{x!r:.80} is neither a program nor the text of one\n  fix: on the command line, outlay explain {x:.40} "
            "explains a recipe; in Python, outlay.explain(program)"
        )
    if isinstance(x, str):
        return _of_text(x, mesh)
    if hasattr(x, "trace") and hasattr(x, "lower"):
        return _of_function(x, args, kwargs, mesh, options, cache)
    raise ExplainError(_not_explainable(x))


def _of_program(program: Program, cache: DiskCache | None) -> ExplainedProgram:
    # The user's step does not know the padding rows that make the number of rows divisible by the devices.
    state = jax.eval_shape(program.crop, program.state_shapes) if program.rows else program.state_shapes
    subject = ExplainedProgram(name=getattr(program.step, "__name__", "step"), mesh=program.mesh, program=program)
    try:
        with program.context(), _without_warnings():
            jaxpr = program.traced_step or jax.make_jaxpr(program.step)(state, program.batch_shapes)
        subject = replace(subject, jaxpr=jaxpr, traced=traced_work(jaxpr))
    except NameError as error:
        if "unbound axis name" not in str(error):
            raise
        subject = replace(subject, notes=(_ON_PIECES,))
    # JAX's cache returns the lines of whoever compiled it first: compiled again, it has its own.
    if program.is_compiled and source_lines_may_be_of_another():
        return _compile(subject, lambda: program.lowered, program.compiler_options, None)
    if program.is_compiled:
        notes = (*subject.notes, _SEEN_BEFORE)
        output = CompilerOutput.of(program.compiled, of_program=True)
        return replace(subject, output=output, notes=notes, options=program.compiler_options)
    return _compile(subject, lambda: program.lowered, program.compiler_options, cache, program)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Trace a program's step without its warnings: they were given when the program was made."""
    # Python repeats a warning that it has shown once filters change, as they do here and while the compiler is watched.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _of_function(
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    mesh: Mesh | AbstractMesh | None,
    options: RequestedOptions,
    cache: DiskCache | None,
) -> ExplainedProgram:
    name = getattr(function, "__name__", "the function")
    if isinstance(mesh, AbstractMesh):
        raise ExplainError(
            f"{name} cannot be compiled for an abstract mesh, which has no devices\n"
            '  fix: a mesh from outlay.mesh(...); with target="h100:32x8" its devices need not be here'
        )
    # Set the mesh only if it was passed: the function may then name axes by bare PartitionSpecs.
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        with fresh_traces():
            traced = trace(function, args, kwargs)
        return _of_traced(name, traced, mesh or _mesh_in((args, kwargs)), options, cache)


def _of_traced(
    name: str,
    traced: jax.stages.Traced,
    mesh: Mesh | AbstractMesh | None,
    options: RequestedOptions,
    cache: DiskCache | None,
) -> ExplainedProgram:
    subject = ExplainedProgram(name=name, mesh=mesh, jaxpr=traced.jaxpr, traced=traced_work(traced.jaxpr))
    return _compile(subject, traced.lower, options, cache)


def _over_arrays(function: Any) -> Any:
    """Turn a function under `eqx.filter_jit`, which takes whole modules, into a jitted function of their arrays."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return arrays_only(function(*as_model(args), **as_model(kwargs)))

    return jax.jit(functools.wraps(function, updated=())(run))


def _compile(
    subject: ExplainedProgram,
    lower: Any,
    how: RequestedOptions,
    cache: DiskCache | None,
    program: Program | None = None,
) -> ExplainedProgram:
    """Compile with the given or known options; a program, if given, compiles itself and keeps the result."""
    mesh = subject.mesh if isinstance(subject.mesh, Mesh) else None
    device = mesh.devices.flat[0] if mesh else None
    options = compiler_options(how, mesh)
    failure, compiled = "", None
    # JAX's persistent cache would return no compiler messages, and the source lines of whoever compiled it first.
    with watching(is_message) as printed, without_compilation_cache():
        with contextlib.ExitStack() as stack:
            if device and is_compile_only(device):
                from outlay.core.jax_kernels import lowering_callbacks

                stack.enter_context(lowering_callbacks())
            if subject.program is not None:
                stack.enter_context(_without_warnings())
            stack.enter_context(fresh_traces())
            start = time.perf_counter()
            lowered = lower()
            subject = replace(subject, trace_seconds=time.perf_counter() - start)
        # Without a mesh the key cannot name the devices; with several processes, each of them would need the entry.
        kept_by = cache if mesh is not None and jax.process_count() == 1 else None
        key = outcome_key(lowered, options, mesh, of_program=program is not None) if kept_by and mesh else ""
        if kept_by and (outcome := Outcome.from_dict(kept_by.load(key))):
            notes = (*subject.notes, _from_cache(kept_by))
            return replace(subject, **vars(outcome), from_cache=True, notes=notes)
        start = time.perf_counter()
        try:
            if program is not None:
                compiled, options = program.compiled, program.compiler_options
            else:
                compiled, options = compile_with(lowered, options, device)
        except jax.errors.JaxRuntimeError as error:
            failure = str(error)
            if "RESOURCE_EXHAUSTED" not in failure:
                raise ExplainError(_refused(subject, failure)) from error
            options = program.compiler_options if program else options
        seconds = time.perf_counter() - start
    output = CompilerOutput.of(compiled, of_program=subject.program is not None) if compiled else None
    outcome = Outcome(output, printed.messages, failure, options)
    if kept_by:
        kept_by.store(key, outcome.to_dict())
    mesh_of = subject.mesh or (_mesh_of(compiled) if compiled else None)
    return replace(subject, **vars(outcome), mesh=mesh_of, seconds=seconds)


def _from_cache(cache: DiskCache) -> str:
    return f"not compiled again: the compiler's output was read from the cache, {cache.folder}"


def _refused(subject: ExplainedProgram, failure: str) -> str:
    """Quote the compiler, and say how to tell whether the program or this compiler is at fault."""
    target = target_of(subject.mesh) if subject.mesh is not None else None
    fix = "remove or rewrite the operation that the compiler names"
    if target is not None and target.hardware.kind != "cpu":
        fix = (
            f"compile for 'cpu:{target.num_devices}' too: if that fails as well, the program is at fault; if not, the "
            f"compiler for {target} lacks the operation; then {fix}"
        )
    compiler = f"the compiler for {target}" if target else "the compiler"
    return f"{compiler} refuses {subject.name}: {failure.strip()}\n  fix: {fix}"


def _of_file(path: Path, mesh: Mesh | AbstractMesh | None) -> ExplainedProgram:
    try:
        text = read_text(path, errors="replace")
    except OSError as error:
        raise ExplainError(f"{path} cannot be read: {error.strerror}") from error
    return ExplainedProgram(name=str(path), output=_only(text), mesh=mesh, notes=_notes_of_text(mesh))


def _of_text(text: str, mesh: Mesh | AbstractMesh | None) -> ExplainedProgram:
    if "\n" not in text and text.endswith(HLO_ENDINGS):
        raise ExplainError(f"{text!r} is text, not a path\n  fix: outlay.explain(Path({text!r}))")
    return ExplainedProgram(name="saved text", output=_only(text), mesh=mesh, notes=_notes_of_text(mesh))


def _only(text: str) -> CompilerOutput:
    return CompilerOutput(text, memory=None, passed=(), state=None)


def _notes_of_text(mesh: Mesh | AbstractMesh | None) -> tuple[str, ...]:
    of_mesh = () if mesh else ("the text does not name your mesh axes: pass mesh= to see them",)
    return ("the text has no memory figures", *of_mesh)


def _mesh_of(compiled: jax.stages.Compiled) -> Mesh | None:
    """Return the mesh of the first argument or result that has one."""
    return _first_mesh(jax.tree.leaves((compiled.input_shardings, compiled.output_shardings)))


def _mesh_in(args: Any) -> Mesh | None:
    return _first_mesh([getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)])


def _first_mesh(shardings: Sequence[Any]) -> Mesh | None:
    meshes = (sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding))
    return next((mesh for mesh in meshes if isinstance(mesh, Mesh)), None)


def _kind(x: Any) -> str:
    words = {Program: "a program", Path: "a file", str: "text"}
    return next((word for kind, word in words.items() if isinstance(x, kind)), f"a {type(x).__name__}")


def _without_arguments(x: Any, args: tuple[Any, ...]) -> str:
    if callable(x) and not isinstance(x, Program):
        return f"outlay.explain(jax.jit({getattr(x, '__name__', 'f')}), ...)"
    targets = [each for each in args if isinstance(each, str)]
    return f"target={targets[0]!r}" if targets else "leave them out"


def _not_explainable(x: Any) -> str:
    accepted = (
        "an outlay.Program, a jitted function with its arguments, jax.stages.Lowered or Compiled, the text of a "
        "compiled program, or a Path to it"
    )
    fix = ""
    if callable(x):
        name = re.sub(r"\W", "", getattr(x, "__name__", "")) or "f"
        fix = f"\n  fix: outlay.explain(jax.jit({name}), ...), with its arguments as arrays or jax.ShapeDtypeStruct"
    return f"an object of type {type(x).__name__} cannot be explained: outlay.explain takes {accepted}{fix}"


_NEEDS_VALUE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
_DEPENDS = re.compile(r"depends on the values? of the arguments? (.+?)\.(?:\s|$)", re.DOTALL)


def trace(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> jax.stages.Traced:
    """Trace a function with the shapes of its arguments.

    Raises:
        ExplainError: an argument is not an array, or the function needs an argument's value.
    """
    try:
        return function.trace(*args, **kwargs)
    except _NEEDS_VALUE as error:
        match = _DEPENDS.search(str(error))
        names = match[1] if match else "an argument"
        raise ExplainError(
            f"{_name(function)} cannot be traced from shapes alone: it needs the value of {names}\n"
            f"  {str(error).splitlines()[0]}\n"
            f"  fix: use jnp and jax.lax.cond instead of Python's if, or make it static: "
            f"jax.jit({_name(function)}, static_argnames={_first(names)!r}) and pass a value"
        ) from error
    except TypeError as error:
        wrong = list(_no_arrays(function, args, kwargs))
        if not wrong or "abstract array" not in str(error):
            raise
        lines = "".join(f"\n  {path}: {what}" for path, what in wrong)
        name, given = _name(function), _first(wrong[0][0])
        fix = f"pass arrays or jax.ShapeDtypeStruct, or make it static: jax.jit({name}, static_argnames={given!r})"
        if wrong[0][0] != given:
            fix = f"pass only the arrays of {given}; wrap a function of Equinox modules in eqx.filter_jit({name})"
        raise ExplainError(
            f"{counted(len(wrong), 'argument')} of {name} with leaves that are not arrays:{lines}\n  fix: {fix}"
        ) from error


def _name(function: Any) -> str:
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "f"


def _first(names: str) -> str:
    match = re.search(r"\w+", names)
    return match[0] if match else "name"


def _no_arrays(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """List the path and type of each argument leaf that JAX cannot treat as an array."""
    try:
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        arguments = {**{f"args[{i}]": arg for i, arg in enumerate(args)}, **kwargs}
    for path, leaf in flatten_paths(dict(arguments))[0]:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            try:
                jax.typeof(leaf)
            except TypeError:
                yield path, f"a {type(leaf).__name__}"
