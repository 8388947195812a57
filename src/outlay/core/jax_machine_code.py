"""Functions in the language of LLVM as operations of JAX: compiled for this processor, called by XLA without Python.

XLA calls a function of C with one argument, the call frame (`xla/ffi/api/c_api.h`, which jaxlib brings along). Before
the first call it asks for the version of that interface, and refuses what it does not know. LLVM comes with `llvmlite`,
so no compiler is needed.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from typing import Any

import jax

MAJOR, MINOR = 0, 3
"""The version of the interface that the functions answer: the one of JAX 0.10.2, which later ones call as well."""

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
BUFFERS
BODY
  ret ptr null
}}
DECLARATIONS
"""
"""What answers XLA's question for the version, finds the arrays, and goes on to the body."""

BUFFER = """
  %NAME_place = getelementptr ptr, ptr %LIST, i64 INDEX
  %NAME_buffer = load ptr, ptr %NAME_place
  %NAME_data_at = getelementptr i8, ptr %NAME_buffer, i64 24
  %NAME = load ptr, ptr %NAME_data_at
  %NAME_dims_at = getelementptr i8, ptr %NAME_buffer, i64 40
  %NAME_dims = load ptr, ptr %NAME_dims_at
"""

_compiled: dict[str, Any] = {}
"""Functions by name, with what keeps their memory alive."""
_lock = threading.Lock()


class NoMachineCode(Exception):
    """Why nothing can be compiled here."""


def target_machine() -> Any:
    """LLVM's compiler for this processor.

    Raises:
        NoMachineCode: llvmlite is missing or too old.
    """
    try:
        import llvmlite.binding as llvm
    except ImportError:
        raise NoMachineCode("llvmlite is not installed (pip install 'outlay[fast-cpu]')") from None
    if llvm.llvm_version_info < (15,):
        raise NoMachineCode(
            f"llvmlite has LLVM {llvm.llvm_version_info[0]}, and 15 is needed (pip install -U llvmlite)"
        )
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)


def compile_function(body: str, declarations: str, num_arguments: int, num_results: int) -> str:
    """Compile a function and register it; the name that `jax.ffi.ffi_call` takes is returned.

    Args:
        body: its lines; argument k is at `%a{k}` and result k at `%r{k}`, with their dims at `%a{k}_dims`.
        declarations: of what it calls.
        num_arguments: how many arrays it takes.
        num_results: how many it makes.

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
    code = FRAME.replace("BUFFERS", buffers).replace("BODY", body).replace("DECLARATIONS", declarations)
    name = "outlay_" + hashlib.sha256(code.encode()).hexdigest()[:24]
    with _lock:
        if name not in _compiled:
            if "half" in body and not llvm.get_host_cpu_features().get("f16c", True):
                raise NoMachineCode("this processor does not convert float16")
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
