"""Private JAX: its backend, devices, compilers and caches. One function for each use, each with a test."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jax._src import compilation_cache, compiler, config, distributed, hardware_utils, xla_bridge
from jax._src.array import ArrayImpl
from jax._src.lib import xla_client
from jax._src.mesh import get_concrete_mesh
from jax.sharding import SingleDeviceSharding
from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue]

from outlay.core.backend_watch import check_flags_once
from outlay.core.error_types import BackendError


def backend_is_started() -> bool:
    """Return whether JAX has created its backend, after which the number of devices is fixed. Does not create it."""
    return xla_bridge.backends_are_initialized()


def quick_options() -> dict[str, Any]:
    """Return compiler options for what runs a few times on a CPU, and is compiled for longer than it runs.

    Nothing is optimized, and nothing is divided for threads, each of which would prepare LLVM anew. Where XLA has both
    ways, fusions go straight to LLVM: through MLIR takes twice as long.
    """
    without_mlir = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
    return {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1, **without_mlir}


def memory_of(array: jax.Array) -> int | None:
    """Return the address of this process's part of an array; None if it holds none, or the backend does not say."""
    array = getattr(array, "_base_array", array)  # the bits of a typed PRNG key, without an operation that reads them
    if not array.sharding.addressable_devices:
        return None
    try:
        return array.addressable_data(0).unsafe_buffer_pointer()
    except jax.errors.JaxRuntimeError:
        return None


def call_over_leaves(compiled: jax.stages.Compiled) -> tuple[Callable[[Any], Any], Callable[[Any], Any]] | None:
    """Return a compiled step as a function from the list of its leaves to the list of the leaves of the new state.

    For whoever has the leaves already, and needs those of the state: no tree is flattened by JAX again.

    Args:
        compiled: a step, which returns a state and outputs.

    Returns:
        The function, whose second result are the outputs, and what builds the state; None if JAX does not let that be.
    """
    known: Any = compiled
    try:
        state, outputs = compiled.out_tree.children()
        args, after, beside = ([0] * tree.num_leaves for tree in (compiled.in_tree, state, outputs))
        params = known._params._replace(
            in_tree=jax.tree.structure(((args,), {})), out_tree=jax.tree.structure((after, outputs.unflatten(beside)))
        )
        call = None if params.is_high else known._executable.create_cpp_call(params)
    except (AttributeError, TypeError, ValueError):  # another version of JAX
        return None
    return None if call is None else (call, state.unflatten)


def deleted_check(shapes: Iterable[Any]) -> Callable[[Any], bool]:
    """Return what says whether an array of one of these shapes and dtypes was deleted, as by donating it.

    It is the method of JAX's arrays itself, which raises `TypeError` for anything else, unless keys are among them.
    """
    has_keys = any(jax.dtypes.issubdtype(shape.dtype, jax.dtypes.extended) for shape in shapes)
    return is_deleted if has_keys else ArrayImpl.is_deleted


is_deleted = operator.methodcaller("is_deleted")
"""Whether an array or a key was deleted, as by donating it; an array of the host raises `AttributeError`."""


def take_packed_arrays(compiled: jax.stages.Compiled) -> None:
    """Have a compiled program take arrays of 4 bits and less, as JAX's own jitted functions do.

    JAX 0.10.2 compares the layout of an argument with the compiler's before a program that was compiled ahead of time
    runs. An array does not say how densely its numbers are packed, the compiler does, and so the two differ.

    Args:
        compiled: the program; it is changed.
    """
    executable: Any = getattr(compiled, "_executable", None)
    layouts, avals = getattr(executable, "_xla_in_layouts", None), getattr(executable, "in_avals", ())
    if layouts is not None and any(map(_is_packed, avals)):
        pairs = zip(layouts, avals, strict=True)
        executable._xla_in_layouts = [None if _is_packed(aval) else layout for layout, aval in pairs]


def _is_packed(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    if dtype is None or not jax.dtypes.issubdtype(dtype, np.number):  # a key or a boolean
        return False
    return jax.dtypes.itemsize_bits(dtype) < 8


def coordination_client() -> Any:
    """Return the client of JAX's coordination service; None in a process that belongs to no job."""
    return distributed.global_state.client


GLOO_SCATTERS_RIGHTLY = (0, 12)
"""The version of JAX since which sums that gloo scatters over CPU devices were right in every run; 0.10.2 errs."""


def scatters_wrongly(platform: str | None) -> bool:
    """Return whether `psum_scatter` gives wrong sums at times here: gloo's, between CPU devices of a job.

    A job of one process uses gloo as well.

    Args:
        platform: that of the devices, such as `cpu`.
    """
    return platform == "cpu" and jax.__version_info__ < GLOO_SCATTERS_RIGHTLY and coordination_client() is not None


def preemption_is_served() -> bool:
    """Return whether JAX's preemption service runs in this process, and so has taken SIGTERM."""
    return distributed.global_state.preemption_sync_manager is not None


def copy_to(arrays: Sequence[jax.Array], devices: Sequence[jax.Device]) -> list[jax.Array]:
    """Copy each array, which is on one device, to another device, without waiting.

    Does what `jax.device_put` does, which spends several times as long in Python on each array.
    """
    shardings = [SingleDeviceSharding(device) for device in devices]
    lists = [one._internal_device_list for one in shardings]
    semantics = [xla_client.ArrayCopySemantics.REUSE_INPUT] * len(shardings)
    return xla_client.batched_copy_array_to_devices_with_sharding(list(arrays), lists, shardings, semantics)


GPU_PLUGINS = {"jax_plugins.xla_cuda13": "jax-cuda13-pjrt", "jax_plugins.xla_cuda12": "jax-cuda12-pjrt"}
"""The modules in which JAX finds a compiler for GPUs, each with its package."""


@dataclass(frozen=True)
class PlannedDevice:
    """What a trace asks of a device of a target: enough to trace for it, without its compiler and without a device.

    Attributes:
        platform: as `jax.Device.platform`.
        device_kind: as `jax.Device.device_kind`.
        compute_capability: that of a GPU, such as `9.0`.
    """

    platform: str
    device_kind: str
    compute_capability: str = ""


planned_device: ContextVar[PlannedDevice | None] = ContextVar("outlay_planned_device", default=None)
"""The device that a step is traced for where it is only known by name; None for a device of the mesh."""


def compiled_for() -> jax.Device:
    """Return a device that the operation being traced is compiled for: of the mesh in context, else of this process."""
    if (planned := planned_device.get()) is not None:
        return cast(jax.Device, planned)
    mesh = get_concrete_mesh()
    return mesh.devices.flat[0] if mesh.size and not mesh.empty else jax.local_devices()[0]


def is_compile_only(device: jax.Device) -> bool:
    """Return whether a device is compile-only: programs can be compiled for it, not run."""
    return isinstance(device, PlannedDevice) or type(device.client).__name__ == "CompileOnlyPyClient"


@contextlib.contextmanager
def without_compilation_cache(device: jax.Device | None = None) -> Iterator[None]:
    """Compile within the block without JAX's persistent compilation cache (`JAX_COMPILATION_CACHE_DIR`).

    A program from that cache has the source lines of whoever compiled it first, and no compiler messages. A program for
    a compile-only device cannot be loaded from it at all (`PjRtCompiler must be constructed with a Client`). With a
    device, the cache is switched off only if the device is compile-only.
    """
    if not compilation_cache.is_persistent_cache_enabled() or (device and not is_compile_only(device)):
        yield
        return
    # JAX decides once a process whether it uses the cache, and remembers that until it is reset.
    compilation_cache.reset_cache()
    try:
        with config.enable_compilation_cache(False):
            yield
    finally:
        compilation_cache.reset_cache()


@functools.cache
def load_no_programs_of_several_cpu_devices() -> None:
    """Have JAX compile each program for several CPU devices, whatever its persistent compilation cache holds.

    XLA (with JAX 0.10.2 and 0.12) has all devices run the collectives of a program in one order. A program that is
    loaded from the cache has lost it: devices begin independent collectives in different orders, and wait for one
    another for ever.
    """
    resolve = getattr(compiler, "_resolve_compilation_strategy", None)
    if resolve is None:  # a JAX that does this elsewhere: a test here fails, and Outlay still starts
        return

    def resolve_safely(computation: Any, devices: Any, options: Any, backend: Any, *rest: Any) -> tuple[Any, Any]:
        if backend.platform == "cpu" and devices.size > 1:
            return None, options  # no key: it is neither read nor written
        return resolve(computation, devices, options, backend, *rest)

    compiler._resolve_compilation_strategy = resolve_safely


def source_lines_may_be_of_another() -> bool:
    """Return whether a compiled program may come from the cache with the source lines of an identical program."""
    by_lines = config.compilation_cache_include_metadata_in_key.value
    return compilation_cache.is_persistent_cache_enabled() and not by_lines


def attached_devices() -> list[jax.Device]:
    """Return all devices of JAX, starting its backend.

    Raises:
        BackendError: JAX does not start with the settings of this process.
    """
    load_no_programs_of_several_cpu_devices()
    if not backend_is_started():
        check_flags_once()
    held: list[logging.LogRecord] = []
    logger = logging.getLogger(xla_bridge.__name__)

    def hold(record: logging.LogRecord) -> bool:
        if is_failure := record.levelno >= logging.ERROR:
            held.append(record)
        return not is_failure

    # Of a plugin that does not load, JAX logs the traceback and then raises an error without the reason. The records
    # are held back: the reason goes into our error, and only what stays unexplained is logged after all.
    logger.addFilter(hold)
    try:
        return jax.devices()
    except (RuntimeError, AssertionError, ValueError) as error:
        asked = jax.config.values["jax_platforms"] or ""
        on = f" on {asked!r}, which JAX_PLATFORMS asks for" if asked else ""
        why = [str(record.exc_info[1]) for record in held if record.exc_info]
        held.clear()
        message = str(error).partition(" (set JAX_PLATFORMS")[0] or "; ".join(why)
        known = ", ".join(sorted({"cpu", *xla_bridge._backend_factories}))
        raise BackendError(
            f"JAX does not start{on}: {message or 'the hardware or its driver is missing'}\n"
            f"  fix: unset JAX_PLATFORMS, or name a platform that is here (this JAX knows {known}); outlay doctor "
            "lists what is here, and --devices 8 or outlay.simulate(8) simulates devices"
        ) from error
    finally:
        logger.removeFilter(hold)
        for record in held:
            logger.handle(record)


def use_cpu_if_alone() -> None:
    """Tell JAX not to look for accelerators on a machine without any: the search is noisy.

    JAX would end up on the CPU anyway. Nothing changes once the backend has started, or where the user chose a
    platform.

    Raises:
        BackendError: `XLA_FLAGS` holds flags with which JAX does not start.
    """
    if backend_is_started():
        return
    check_flags_once()
    if jax.config.values["jax_platforms"] or _accelerator_may_be_there():
        return
    jax.config.update("jax_platforms", "cpu")


def _accelerator_may_be_there() -> bool:
    tpus, _ = hardware_utils.num_available_tpu_chips_and_device_id()
    installed = {entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")}
    others = installed - {module.rpartition(".")[2] for module in GPU_PLUGINS}
    return hardware_utils.has_visible_nvidia_gpu() or tpus > 0 or bool(others)


def text_with_constants(compiled: jax.stages.Compiled) -> str:
    """Return the text of a compiled program with its constants whole; `as_text` leaves out all but small ones."""
    executable: Any = compiled.runtime_executable()
    (module,) = executable.hlo_modules()
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    return module.to_string(options)
