"""What is to be explained, compiled: a program, a function, what JAX made of one, or saved text."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from outlay.analysis.findings.compiler_messages import is_message
from outlay.analysis.work.traced import TracedWork, traced_work
from outlay.core.array_leaves import arrays_only, as_model
from outlay.core.error_types import ExplainError
from outlay.core.jax_compat import source_lines_may_be_of_another, without_compilation_cache
from outlay.core.jax_kernels import lowering_callbacks
from outlay.core.jax_tracing import fresh_traces
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted
from outlay.devices.compile_only import target_of
from outlay.program.compiler_options import CompilerOptions, RequestedOptions, compile_with, compiler_options
from outlay.program.program import Program

HLO_ENDINGS = (".txt", ".hlo")
"""How the names of files end that hold the text of a compiled program."""


@dataclass(frozen=True)
class Subject:
    """A compiled program, as far as it is known.

    Attributes:
        name: what it is, in words.
        text: of the optimized program; empty where the compiler gave up.
        compiled: the program, where it is at hand.
        mesh: the mesh that it is partitioned over, where it is known.
        program: what it was made from, if that is an `outlay.Program`.
        jaxpr: the traced program, where it is at hand.
        traced: what was counted in the traced function, on all devices together.
        messages: what the compiler printed and we know.
        failure: the compiler's error, where it ran out of memory.
        seconds: how long compiling took; None where it was done before.
        notes: what could not be found out, in words.
        options: what the compiler was asked for; None where it was compiled by others.
    """

    name: str
    text: str = ""
    compiled: jax.stages.Compiled | None = None
    mesh: Mesh | AbstractMesh | None = None
    program: Program | None = None
    jaxpr: Any = None
    traced: TracedWork | None = None
    messages: tuple[str, ...] = ()
    failure: str = ""
    seconds: float | None = None
    notes: tuple[str, ...] = ()
    options: CompilerOptions | None = None


_ON_PIECES = (
    "the step has collectives of its own, and a meaning on each device's pieces only: what it computes on whole arrays "
    "is not counted"
)
_SEEN_BEFORE = "it was compiled before: what the compiler printed then is not known"


def subject_of(
    x: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    mesh: Mesh | AbstractMesh | None,
    options: RequestedOptions,
) -> Subject:
    """Compile what is to be explained; nothing is run.

    Raises:
        ExplainError: it is nothing that can be explained, cannot be traced with these arguments, or the compiler
            refuses it for another reason than memory.
    """
    if hasattr(x, "lower") and callable(x) and not isinstance(x, jax.stages.Traced) and not hasattr(x, "trace"):
        return _of_function(_over_arrays(x), arrays_only(args), arrays_only(kwargs), mesh, options)
    if (args or kwargs) and not hasattr(x, "trace"):
        raise ExplainError(f"arguments are for a jitted function; {_kind(x)} has its own")
    if options != "preset" and not hasattr(x, "lower"):
        raise ExplainError(
            f"compiler options are for what is yet to be compiled; {_kind(x)} has its own, or is compiled"
        )
    if isinstance(x, Program):
        return _of_program(x)
    if isinstance(x, jax.stages.Compiled):
        return Subject("a compiled function", x.as_text() or "", x, mesh or _mesh_of(x), notes=(_SEEN_BEFORE,))
    if isinstance(x, jax.stages.Lowered):
        return _compile(Subject("a lowered function", mesh=mesh), lambda: x, options)
    if isinstance(x, jax.stages.Traced):
        return _compile(Subject(x.fun_name, mesh=mesh, jaxpr=x.jaxpr, traced=traced_work(x.jaxpr)), x.lower, options)
    if isinstance(x, Path):
        return _of_file(x, mesh)
    if isinstance(x, str):
        return _of_text(x, mesh)
    if hasattr(x, "trace") and hasattr(x, "lower"):
        return _of_function(x, args, kwargs, mesh, options)
    raise ExplainError(_not_explainable(x))


def _of_program(program: Program) -> Subject:
    # The user's step knows nothing of rows that fill up what the devices do not divide.
    state = jax.eval_shape(program.crop, program.state_shapes) if program.rows else program.state_shapes
    subject = Subject(getattr(program.step, "__name__", "step"), mesh=program.mesh, program=program)
    try:
        with program.context():
            jaxpr = jax.make_jaxpr(program.step)(state, program.batch_shapes)
        subject = replace(subject, jaxpr=jaxpr, traced=traced_work(jaxpr))
    except NameError as error:
        if "unbound axis name" not in str(error):
            raise
        subject = replace(subject, notes=(_ON_PIECES,))
    if program.is_compiled and source_lines_may_be_of_another():
        return _compile(subject, lambda: program.lowered, program.compiler_options)
    if program.is_compiled:
        notes = (*subject.notes, _SEEN_BEFORE)
        options, compiled = program.compiler_options, program.compiled
        return replace(subject, text=compiled.as_text() or "", compiled=compiled, notes=notes, options=options)
    return _compile(subject, lambda: program.lowered, program)


def _of_function(
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    mesh: Mesh | AbstractMesh | None,
    options: RequestedOptions,
) -> Subject:
    name = getattr(function, "__name__", "the function")
    # The mesh is set only where it was given: then the function may name axes without saying of which mesh.
    if mesh is None:
        with fresh_traces():
            traced = trace(function, args, kwargs)
        subject = Subject(name, mesh=_mesh_in((args, kwargs)))
        subject = replace(subject, jaxpr=traced.jaxpr, traced=traced_work(traced.jaxpr))
        return _compile(subject, traced.lower, options)
    if isinstance(mesh, AbstractMesh):
        raise ExplainError(
            f"{name} cannot be compiled for an abstract mesh, which has no devices\n"
            '  fix: a mesh from outlay.mesh(...); with target="h100:32x8" its devices need not be here'
        )
    with jax.set_mesh(mesh), fresh_traces():
        traced = trace(function, args, kwargs)
        subject = Subject(name, mesh=mesh, jaxpr=traced.jaxpr, traced=traced_work(traced.jaxpr))
        return _compile(subject, traced.lower, options)


def _over_arrays(function: Any) -> Any:
    """A function under `eqx.filter_jit`, which takes whole modules, as a jitted one of their arrays."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return arrays_only(function(*as_model(args), **as_model(kwargs)))

    return jax.jit(functools.wraps(function, updated=())(run))


def _compile(subject: Subject, lower: Any, how: RequestedOptions | CompilerOptions | Program) -> Subject:
    """Compile with options that are asked for or known; a program compiles itself, and keeps what it made."""
    mesh = subject.mesh if isinstance(subject.mesh, Mesh) else None
    device = mesh.devices.flat[0] if mesh else None
    options = how if isinstance(how, CompilerOptions | Program) else compiler_options(how, mesh)
    failure, compiled = "", None
    # A program from JAX's persistent cache would have no messages, and the source lines of whoever compiled it first.
    with watching(is_message) as printed, without_compilation_cache():
        with lowering_callbacks(device) if device else contextlib.nullcontext(), fresh_traces():
            lowered = lower()
        start = time.perf_counter()
        try:
            if isinstance(options, Program):
                compiled, options = options.compiled, options.compiler_options
            else:
                compiled, options = compile_with(lowered, options, device)
        except jax.errors.JaxRuntimeError as error:
            failure = str(error)
            if "RESOURCE_EXHAUSTED" not in failure:
                raise ExplainError(_refused(subject, failure)) from error
        seconds = time.perf_counter() - start
    return replace(
        subject,
        text=(compiled.as_text() or "") if compiled else "",
        compiled=compiled,
        mesh=subject.mesh or (_mesh_of(compiled) if compiled else None),
        messages=printed.messages,
        failure=failure,
        seconds=seconds,
        options=options.compiler_options if isinstance(options, Program) else options,
    )


def _refused(subject: Subject, failure: str) -> str:
    """The compiler's words, and how to tell whether the program or this compiler is at fault."""
    target = target_of(subject.mesh) if subject.mesh is not None else None
    fix = "leave out, or write otherwise, what the compiler names"
    if target is not None and target.hardware.kind != "cpu":
        fix = (
            f"compile for 'cpu:{target.num_devices}' too: what is refused there as well is in the program, and what is "
            f"not, the compiler for {target} lacks; then {fix}"
        )
    compiler = f"the compiler for {target}" if target else "the compiler"
    return f"{compiler} refuses {subject.name}: {failure.strip()}\n  fix: {fix}"


def _of_file(path: Path, mesh: Mesh | AbstractMesh | None) -> Subject:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ExplainError(f"{path} cannot be read: {error.strerror}") from error
    return Subject(str(path), text, mesh=mesh, notes=_notes_of_text(mesh))


def _of_text(text: str, mesh: Mesh | AbstractMesh | None) -> Subject:
    if "\n" not in text and text.endswith(HLO_ENDINGS):
        raise ExplainError(f"{text!r} is text, not a path\n  fix: outlay.explain(Path({text!r}))")
    return Subject("saved text", text, mesh=mesh, notes=_notes_of_text(mesh))


def _notes_of_text(mesh: Mesh | AbstractMesh | None) -> tuple[str, ...]:
    of_mesh = () if mesh else ("the text names no mesh axes of yours: pass mesh= to have them",)
    return ("the text holds no figures of memory", *of_mesh)


def _mesh_of(compiled: jax.stages.Compiled) -> Mesh | None:
    """The mesh of the first argument or result that has one."""
    return _first_mesh(jax.tree.leaves((compiled.input_shardings, compiled.output_shardings)))


def _mesh_in(args: Any) -> Mesh | None:
    return _first_mesh([getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)])


def _first_mesh(shardings: Sequence[Any]) -> Mesh | None:
    meshes = (sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding))
    return next((mesh for mesh in meshes if isinstance(mesh, Mesh)), None)


def _kind(x: Any) -> str:
    words = {Program: "a program", Path: "a file", str: "text"}
    return next((word for kind, word in words.items() if isinstance(x, kind)), f"a {type(x).__name__}")


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
    """The function traced with its arguments as shapes.

    Raises:
        ExplainError: an argument is no array, or the function needs an argument's value.
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
            fix = f"pass the arrays of {given} alone; a function of Equinox modules goes under eqx.filter_jit({name})"
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
    """Path and type of what JAX cannot see as an array."""
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


_STDERR = 2
# There is one standard error for all threads.
_one_at_a_time = threading.Lock()


@dataclass
class Printed:
    """What was printed.

    Attributes:
        messages: the lines that were recognised; ready when the compiler is done.
    """

    messages: tuple[str, ...] = ()


@contextlib.contextmanager
def watching(recognised: Callable[[str], bool]) -> Iterator[Printed]:
    """Catch what is written to the standard error, also by C++ code, and write what is not recognised after.

    Meanwhile it lies in a file of the temporary folder, `outlay-compiler-*.log`; it stays if the process dies.

    Args:
        recognised: whether a line is a message that will be reported otherwise.
    """
    printed = Printed()
    with _one_at_a_time, contextlib.ExitStack() as stack:
        # JAX's own warning of donation in vain comes from Python; what became of it stands in the compiled program.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        try:
            original = os.dup(_STDERR)
        except OSError:  # a process without a standard error
            yield printed
            return
        file, path = tempfile.mkstemp(prefix="outlay-compiler-", suffix=".log")
        _flush()
        os.dup2(file, _STDERR)
        try:
            yield printed
        finally:
            _flush()
            os.dup2(original, _STDERR)
            os.close(original)
            lines = _read(file)
            os.close(file)
            os.unlink(path)
            printed.messages = tuple(line.rstrip("\n") for line in lines if recognised(line))
            _write("".join(line for line in lines if not recognised(line)))


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()


def _read(file: int) -> list[str]:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), encoding="utf-8", errors="surrogateescape", newline="") as text:
        return text.read().splitlines(keepends=True)


def _write(text: str) -> None:
    left = text.encode("utf-8", errors="surrogateescape")
    while left:
        left = left[os.write(_STDERR, left) :]
