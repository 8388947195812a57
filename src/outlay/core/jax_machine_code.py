"""Functions in LLVM's language as operations of JAX: compiled for this processor, called by XLA without Python.

XLA calls a C function with one argument, the call frame (`xla/ffi/api/c_api.h`, part of jaxlib). Before the first call
it asks for the version of that interface, and refuses versions that it does not know. LLVM comes with `llvmlite`, so no
compiler needs to be installed.

A function computes independent rows. If there are many rows, it asks threads of XLA's own pool to help: any thread that
is free takes the next piece. The caller does not wait for threads that have not begun. So if all threads of the pool
are busy, or a fork left none, only their help is lost. The last thread to leave frees the shared memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import jax

from outlay.core.runtime_flags import num_cores

MAJOR, MINOR = 0, 3
"""The version of the interface that the functions report: that of JAX 0.10.2, which later versions of JAX accept."""

PIECES_OF_THREAD = 4
"""The least number of pieces per thread: for fewer, a thread begins too late to help (measured)."""

ROWS = "ptr %arguments, ptr %results, i64 %num_rows"
JOB = "{ i64, i64, i64, i64, i64, ptr, ptr }"
"""The memory that threads share: the next piece, the pieces done, the threads that still use it; then, unchanged, the
number of pieces, the number of rows, and the arrays."""

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
  %array = load ptr, ptr %arguments
  %dims_at = getelementptr i8, ptr %array, i64 40
  %dims = load ptr, ptr %dims_at
  %num_rows = load i64, ptr %dims
  %rounded_up = add i64 %num_rows, LAST_OF_PIECE
  %num_pieces = udiv i64 %rounded_up, PIECE
  %most_threads = load i64, ptr inttoptr (i64 NUM_THREADS to ptr)
  %enough_threads = udiv i64 %num_pieces, {PIECES_OF_THREAD}
  %num_threads = call i64 @llvm.umin.i64(i64 %most_threads, i64 %enough_threads)
  %is_shared = icmp ugt i64 %num_threads, 1
  br i1 %is_shared, label %share, label %alone
alone:
  call void @NAME_rows(ptr %arguments, ptr %results, i64 0, i64 %num_rows)
  ret ptr null
share:
  call void @NAME_share(ptr %frame, {ROWS}, i64 %num_pieces, i64 %num_threads)
  ret ptr null
}}

define internal void @NAME_rows(ptr %arguments, ptr %results, i64 %first, i64 %last) noinline {{
start:
BUFFERS
BODY
  ret void
}}
declare i64 @llvm.umin.i64(i64, i64)
DECLARATIONS
"""
"""Answers XLA's question for the version, computes all rows in one thread or in several, and the code of the rows."""

SHARED = f"""
define internal void @NAME_share(ptr %frame, {ROWS}, i64 %num_pieces, i64 %num_threads) noinline {{
  %asked = alloca {{ i64, ptr, ptr, ptr, ptr }}
  %refused = alloca {{ i64, ptr, ptr }}
  %job = call ptr inttoptr (i64 MALLOC to ptr)(i64 ptrtoint (ptr getelementptr ({JOB}, ptr null, i64 1) to i64))
  %num_holders_at = getelementptr {JOB}, ptr %job, i32 0, i32 2
  store {JOB} zeroinitializer, ptr %job
  store i64 %num_threads, ptr %num_holders_at
  %num_pieces_at = getelementptr {JOB}, ptr %job, i32 0, i32 3
  store i64 %num_pieces, ptr %num_pieces_at
  %num_rows_at = getelementptr {JOB}, ptr %job, i32 0, i32 4
  store i64 %num_rows, ptr %num_rows_at
  %arguments_at = getelementptr {JOB}, ptr %job, i32 0, i32 5
  store ptr %arguments, ptr %arguments_at
  %results_at = getelementptr {JOB}, ptr %job, i32 0, i32 6
  store ptr %results, ptr %results_at
  %api_at = getelementptr i8, ptr %frame, i64 16
  %api = load ptr, ptr %api_at
  %destroy_at = getelementptr i8, ptr %api, i64 64
  %destroy = load ptr, ptr %destroy_at
  %schedule_at = getelementptr i8, ptr %api, i64 136
  %schedule = load ptr, ptr %schedule_at
  %context_at = getelementptr i8, ptr %frame, i64 24
  %context = load ptr, ptr %context_at
  br label %others
others:
  %k = phi i64 [1, %0], [%next_k, %other_asked]
  %is_other = icmp ult i64 %k, %num_threads
  br i1 %is_other, label %ask_other, label %own
ask_other:
  store i64 40, ptr %asked
  %asked_extension = getelementptr i8, ptr %asked, i64 8
  store ptr null, ptr %asked_extension
  %asked_context = getelementptr i8, ptr %asked, i64 16
  store ptr %context, ptr %asked_context
  %asked_task = getelementptr i8, ptr %asked, i64 24
  store ptr @NAME_help, ptr %asked_task
  %asked_data = getelementptr i8, ptr %asked, i64 32
  store ptr %job, ptr %asked_data
  %error = call ptr %schedule(ptr %asked)
  %is_refused = icmp ne ptr %error, null
  br i1 %is_refused, label %other_refused, label %other_asked
other_refused:
  store i64 24, ptr %refused
  %refused_extension = getelementptr i8, ptr %refused, i64 8
  store ptr null, ptr %refused_extension
  %refused_error = getelementptr i8, ptr %refused, i64 16
  store ptr %error, ptr %refused_error
  call void %destroy(ptr %refused)
  call void @NAME_leave(ptr %job)
  store i64 1, ptr inttoptr (i64 REFUSED to ptr)
  br label %other_asked
other_asked:
  %next_k = add i64 %k, 1
  br label %others
own:
  call void @NAME_pieces(ptr %job)
  %num_done_at = getelementptr {JOB}, ptr %job, i32 0, i32 1
  br label %wait
wait:
  %num_done = load atomic i64, ptr %num_done_at acquire, align 8
  %are_done = icmp eq i64 %num_done, %num_pieces
  br i1 %are_done, label %done, label %wait_on
wait_on:
  call i32 inttoptr (i64 SCHED_YIELD to ptr)()
  br label %wait
done:
  call void @NAME_leave(ptr %job)
  ret void
}}

define internal void @NAME_help(ptr %job) {{
  call void @NAME_pieces(ptr %job)
  call void @NAME_leave(ptr %job)
  ret void
}}

define internal void @NAME_pieces(ptr %job) noinline {{
  %next_at = getelementptr {JOB}, ptr %job, i32 0, i32 0
  %num_done_at = getelementptr {JOB}, ptr %job, i32 0, i32 1
  %num_pieces_at = getelementptr {JOB}, ptr %job, i32 0, i32 3
  %num_pieces = load i64, ptr %num_pieces_at
  %num_rows_at = getelementptr {JOB}, ptr %job, i32 0, i32 4
  %num_rows = load i64, ptr %num_rows_at
  %arguments_at = getelementptr {JOB}, ptr %job, i32 0, i32 5
  %arguments = load ptr, ptr %arguments_at
  %results_at = getelementptr {JOB}, ptr %job, i32 0, i32 6
  %results = load ptr, ptr %results_at
  br label %take
take:
  %piece = atomicrmw add ptr %next_at, i64 1 monotonic
  %is_left = icmp ult i64 %piece, %num_pieces
  br i1 %is_left, label %compute, label %none
compute:
  %first = mul i64 %piece, PIECE
  %after = add i64 %first, PIECE
  %is_whole = icmp ult i64 %after, %num_rows
  %last = select i1 %is_whole, i64 %after, i64 %num_rows
  call void @NAME_rows(ptr %arguments, ptr %results, i64 %first, i64 %last)
  %num_before = atomicrmw add ptr %num_done_at, i64 1 release
  br label %take
none:
  ret void
}}

define internal void @NAME_leave(ptr %job) noinline {{
  %num_holders_at = getelementptr {JOB}, ptr %job, i32 0, i32 2
  %num_holders = atomicrmw sub ptr %num_holders_at, i64 1 acq_rel
  %is_last = icmp eq i64 %num_holders, 1
  br i1 %is_last, label %free, label %end
free:
  call void inttoptr (i64 FREE to ptr)(ptr %job)
  br label %end
end:
  ret void
}}
"""
"""Several threads: the first asks for the others, computes pieces until none is left, and waits for pieces that others
have begun."""

BUFFER = """
  %NAME_place = getelementptr ptr, ptr %LIST, i64 INDEX
  %NAME_buffer = load ptr, ptr %NAME_place
  %NAME_data_at = getelementptr i8, ptr %NAME_buffer, i64 24
  %NAME = load ptr, ptr %NAME_data_at
"""

_compiled: dict[str, Any] = {}
"""The compiled functions by name; the values keep their memory alive."""
_lock = threading.Lock()
num_threads = ctypes.c_int64(num_cores())
"""The largest number of threads; the functions read it at every call."""
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
    symbols = {name.upper(): _address(name) for name in ("malloc", "free", "sched_yield")}
    if not all(symbols.values()):
        num_threads.value = 1
    return symbols | {"NUM_THREADS": ctypes.addressof(num_threads), "REFUSED": ctypes.addressof(_refused)}


def _address(symbol: str) -> int:
    """Return the address of a function of the C library in this process; 0 if it is missing."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), symbol), ctypes.c_void_p).value or 0
    except (AttributeError, OSError, TypeError):
        return 0


def compile_function(body: str, declarations: str, num_arguments: int, num_results: int, piece: int) -> str:
    """Compile a function and register it; return its name for `jax.ffi.ffi_call`.

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
    machine = target_machine()
    import llvmlite.binding as llvm

    arrays = [("arguments", f"a{k}", k) for k in range(num_arguments)]
    arrays += [("results", f"r{k}", k) for k in range(num_results)]
    buffers = "".join(
        BUFFER.replace("NAME", name).replace("LIST", where).replace("INDEX", str(k)) for where, name, k in arrays
    )
    code = (FRAME + SHARED).replace("BUFFERS", buffers).replace("BODY", body).replace("DECLARATIONS", declarations)
    code = code.replace("LAST_OF_PIECE", str(piece - 1)).replace("PIECE", str(piece))
    name = "outlay_" + hashlib.sha256(code.encode()).hexdigest()[:24]
    with _lock:
        if name not in _compiled:
            if "half" in body and not llvm.get_host_cpu_features().get("f16c", True):
                raise NoMachineCode("this processor does not convert float16")
            for what, address in _addresses().items():
                code = code.replace(f"i64 {what} to", f"i64 {address} to")
            try:
                module = llvm.parse_assembly(code.replace("@NAME", f"@{name}"))
                module.verify()
            except RuntimeError as error:
                raise NoMachineCode(
                    f"this LLVM, {llvm.llvm_version_info[0]}, does not take the code: {error}"
                ) from error
            options = llvm.create_pipeline_tuning_options(speed_level=2)
            builder = llvm.create_pass_builder(machine, options)
            builder.getModulePassManager().run(module, builder)
            engine = llvm.create_mcjit_compiler(module, machine)
            engine.finalize_object()
            function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address(name))
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="cpu")
            _compiled[name] = engine
    return name
