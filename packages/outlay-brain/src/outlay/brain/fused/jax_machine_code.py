"""Functions in LLVM's language as operations of JAX: compiled for this processor, called by XLA without Python.

XLA calls a C function with one argument, the call frame (`xla/ffi/api/c_api.h`, part of jaxlib). Before the first call
it asks for the version of that interface, and refuses versions that it does not know. LLVM comes with `llvmlite`, so no
compiler needs to be installed.

A function computes independent rows, which several threads share if there are many (`rows_of_threads`). One call may be
of several functions: threads share the rows of all of them, and are asked once.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from outlay.brain.fused.rows_of_threads import ARRAYS, ENTRY, LINE, PIECES, SHARED
from outlay.kit import num_cores

MAJOR, MINOR = 0, 3
"""The version of the interface that the functions report: that of JAX 0.10.2, which later versions of JAX accept."""

PIECES_OF_THREAD = 4
"""The least number of pieces per thread: for fewer, a thread begins too late to help (measured)."""

FRAME = f"""
define ptr @NAME(ptr %frame) {{
  %extension_at = getelementptr i8, ptr %frame, i64 8
  %extension = load ptr, ptr %extension_at
  %is_call = icmp eq ptr %extension, null
  br i1 %is_call, label %call, label %question
question:
  %kind_at = getelementptr i8, ptr %extension, i64 8
  %kind = load i32, ptr %kind_at
  %is_metadata = icmp eq i32 %kind, 1
  br i1 %is_metadata, label %answer, label %call
answer:
  %metadata_at = getelementptr i8, ptr %extension, i64 24
  %metadata = load ptr, ptr %metadata_at
  %major_at = getelementptr i8, ptr %metadata, i64 24
  store i32 {MAJOR}, ptr %major_at
  %minor_at = getelementptr i8, ptr %metadata, i64 28
  store i32 {MINOR}, ptr %minor_at
  %traits_at = getelementptr i8, ptr %metadata, i64 32
  store i32 0, ptr %traits_at
  %state_type_at = getelementptr i8, ptr %metadata, i64 40
  store i64 0, ptr %state_type_at
  ret ptr null
call:
  %arguments_at = getelementptr i8, ptr %frame, i64 72
  %arguments = load ptr, ptr %arguments_at
  %results_at = getelementptr i8, ptr %frame, i64 112
  %results = load ptr, ptr %results_at
  %num_pieces = call i64 @NAME_all_pieces(ptr %arguments)
  %turn = atomicrmw xor ptr @NAME_turn, i64 1 monotonic
  %most_threads = load i64, ptr inttoptr (i64 NUM_THREADS to ptr)
  %enough_threads = udiv i64 %num_pieces, {PIECES_OF_THREAD}
  %num_threads = call i64 @llvm.umin.i64(i64 %most_threads, i64 %enough_threads)
  %is_shared = icmp ugt i64 %num_threads, 1
  br i1 %is_shared, label %share, label %alone
alone:
  call void @NAME_alone(ptr %arguments, ptr %results, i64 %num_pieces, i64 %turn)
  ret ptr null
share:
  call void @NAME_share(ptr %frame, {ARRAYS}, i64 %num_pieces, i64 %num_threads)
  ret ptr null
}}

@NAME_turn = internal global i64 0
@NAME_table = internal constant [NUM_FUNCTIONS x {ENTRY}] [TABLE]
declare i64 @llvm.umin.i64(i64, i64)
"""
"""Answers XLA's question for the version, and computes the rows of all functions in one thread or in several."""

ROWS = """
define void @NAME(ptr %arguments, ptr %results, i64 %first, i64 %last) {
start:
BUFFERS
BODY
  ret void
}
DECLARATIONS
"""
"""A function that computes some of its rows."""

BUFFER = """
  %NAME_place = getelementptr ptr, ptr %LIST, i64 INDEX
  %NAME_buffer = load ptr, ptr %NAME_place
  %NAME_data_at = getelementptr i8, ptr %NAME_buffer, i64 24
  %NAME = load ptr, ptr %NAME_data_at
"""

_compiled: dict[str, Any] = {}
"""The compiled functions by name; the values keep their memory alive."""
_registered: set[str] = set()
"""The names that XLA knows."""
_lock = threading.Lock()
num_threads = ctypes.c_int64(num_cores())
"""The largest number of threads; the functions read it at every call."""
patience = ctypes.c_int64(2000)
"""How often a waiting thread pauses before it leaves: about a tenth of a millisecond in all."""
_ARM = ("llvm.aarch64.hint", "i32", "i32 1")
PAUSE = {"x86_64": ("llvm.x86.sse2.pause", "", ""), "aarch64": _ARM, "arm64": _ARM}
"""How a processor is told that a thread only waits: the function, its type of argument, and the argument."""
_places = (ctypes.c_int64 * (LINE // 8) * num_cores())()
"""The places where threads wait, one per cache line."""
_refused = ctypes.c_int64(0)
"""Set to 1 by a function if XLA had no threads for it."""


class NoMachineCode(Exception):
    """Raised with the reason why nothing can be compiled here."""


def target_machine() -> Any:
    """Return LLVM's compiler for this processor.

    Raises:
        NoMachineCode: llvmlite is missing or too old, or does not know this processor.
    """
    try:
        import llvmlite.binding as llvm
    except ImportError:
        raise NoMachineCode("llvmlite is not installed (pip install 'outlay[fast-cpu]')") from None
    if llvm.llvm_version_info < (15,):
        raise NoMachineCode(
            f"llvmlite has LLVM {llvm.llvm_version_info[0]}, and 15 is needed (pip install -U llvmlite)"
        )
    try:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features().flatten()
        target = llvm.Target.from_default_triple()
        return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)
    except RuntimeError as error:
        raise NoMachineCode(f"LLVM does not know this processor: {error}") from error


def one_thread_reason() -> str | None:
    """Explain why compiled functions got no threads although there are cores; None if they did."""
    if missing := [symbol for symbol, address in _addresses().items() if not address]:
        return f"the C library of this system has no {', '.join(missing).lower()}"
    return "XLA has no threads for it" if _refused.value else None


@contextlib.contextmanager
def at_most_threads(num: int) -> Iterator[None]:
    """Limit the functions to a number of threads."""
    before, num_threads.value = num_threads.value, num
    try:
        yield
    finally:
        num_threads.value = before


def _addresses() -> dict[str, int]:
    """Return the addresses of what the functions call and read; 0 for what is missing."""
    symbols = {name.upper(): _address(name) for name in ("calloc", "free", "sched_yield")}
    if not all(symbols.values()):
        num_threads.value = 1
    looked_at = {"NUM_THREADS": num_threads, "PLACES": _places, "PATIENCE": patience, "REFUSED": _refused}
    return symbols | {name: ctypes.addressof(value) for name, value in looked_at.items()}


def _address(symbol: str) -> int:
    """Return the address of a function of the C library in this process; 0 if it is missing."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), symbol), ctypes.c_void_p).value or 0
    except (AttributeError, OSError, TypeError):
        return 0


@dataclass(frozen=True)
class RowFunction:
    """A compiled function of the rows of its first argument.

    Attributes:
        name: its name.
        num_arguments: the number of arrays that it takes.
        num_results: the number of arrays that it returns.
        piece: the number of rows that a thread computes at once.
    """

    name: str
    num_arguments: int
    num_results: int
    piece: int


def compile_rows(body: str, declarations: str, num_arguments: int, num_results: int, piece: int) -> RowFunction:
    """Compile a function that computes rows.

    Args:
        body: its lines, in block `%start`, for the rows `%first` to `%last` (excluded) of the first argument; argument
            k is at `%a{k}` and result k at `%r{k}`.
        declarations: declarations of the functions that it calls.
        num_arguments: the number of arrays that it takes.
        num_results: the number of arrays that it returns.
        piece: the number of rows that a thread computes at once.

    Raises:
        NoMachineCode: nothing can be compiled here.
    """
    arrays = [("arguments", f"a{k}", k) for k in range(num_arguments)]
    arrays += [("results", f"r{k}", k) for k in range(num_results)]
    buffers = "".join(
        BUFFER.replace("NAME", name).replace("LIST", where).replace("INDEX", str(k)) for where, name, k in arrays
    )
    code = ROWS.replace("BUFFERS", buffers).replace("BODY", body).replace("DECLARATIONS", declarations)
    return RowFunction(_compile(code, lambda code: code), num_arguments, num_results, piece)


def compile_call(functions: Sequence[RowFunction]) -> str:
    """Compile what XLA calls to compute all rows of some functions; return its name for `jax.ffi.ffi_call`.

    Its arguments are those of the first function, then those of the second, and so on; its results likewise.

    Raises:
        NoMachineCode: nothing can be compiled here.
    """
    arguments = itertools.accumulate((function.num_arguments for function in functions), initial=0)
    results = itertools.accumulate((function.num_results for function in functions), initial=0)
    entries = [
        f"{ENTRY} {{ ptr inttoptr (i64 {function.name} to ptr), i64 {first}, i64 {result}, i64 {function.piece} }}"
        for function, first, result in zip(functions, arguments, results, strict=False)
    ]
    code = (FRAME + PIECES + SHARED).replace("TABLE", ", ".join(entries)).replace("NUM_FUNCTIONS", str(len(entries)))

    def located(code: str) -> str:
        # Where a thread cannot tell its core, all begin with the first rows.
        which_core = _address("sched_getcpu")
        code = code.replace(
            "THIS_CORE", f"call i32 inttoptr (i64 {which_core} to ptr)()" if which_core else "add i32 0, 0"
        )
        addresses = _addresses() | {
            each.name: _compiled[each.name].get_function_address(each.name) for each in functions
        }
        for what, address in addresses.items():
            code = code.replace(f"i64 {what} to", f"i64 {address} to")
        if platform.machine() not in PAUSE:
            return code.replace("  PAUSE\n", "")
        name, type_, argument = PAUSE[platform.machine()]
        return code.replace("  PAUSE\n", f"  call void @{name}({argument})\n") + f"\ndeclare void @{name}({type_})\n"

    name = _compile(code.replace("NUM_PLACES", str(len(_places))), located)
    with _lock:
        if name not in _registered:
            function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_compiled[name].get_function_address(name))
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
            _registered.add(name)
    return name


def _compile(code: str, located: Callable[[str], str]) -> str:
    """Compile a function once, and return its name.

    Args:
        code: its code, in which the function is called `@NAME`.
        located: puts addresses into the code, which are no part of its name.
    """
    machine = target_machine()
    import llvmlite.binding as llvm

    name = "outlay_" + hashlib.sha256(code.encode()).hexdigest()[:24]
    with _lock:
        if name in _compiled:
            return name
        if "half" in code and not llvm.get_host_cpu_features().get("f16c", True):
            raise NoMachineCode("this processor does not convert float16")
        try:
            module = llvm.parse_assembly(located(code).replace("@NAME", f"@{name}"))
            module.verify()
        except RuntimeError as error:
            what = str(error).splitlines()[0]
            raise NoMachineCode(f"this LLVM, {llvm.llvm_version_info[0]}, does not take the code: {what}") from error
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        _compiled[name] = engine
    return name
