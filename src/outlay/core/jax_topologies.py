"""Private JAX: devices of hardware that is not attached, and the compilers for it."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax._src import hardware_utils, xla_bridge
from jax._src.lib import xla_client
from jax.experimental import topologies

from outlay.core.compiler_folder import compiler_file
from outlay.core.error_types import TargetError
from outlay.core.jax_compat import GPU_PLUGINS

_GPU_LIBRARY = "xla_cuda_plugin.so"
_TPU_LIBRARY = "TPU_LIBRARY_PATH"
"""The variable by which JAX finds libtpu where it is no package."""
# Read by libtpu when it loads. Without a TPU it would ask the cloud for one, complain on stderr that there is none,
# lock out every other process, and log to a folder of its own.
_TPU_WITHOUT_A_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
}


def gpu_topology_devices(num_hosts: int, devices_per_host: int, target_config: str) -> list[jax.Device]:
    """Return devices of NVIDIA GPUs that are not attached: programs can be compiled for them, not run.

    Args:
        num_hosts: how many hosts.
        devices_per_host: how many GPUs each has.
        target_config: the description of the GPU that the compiler reads, a `GpuTargetConfigProto` as text.

    Raises:
        TargetError: the compiler is not installed, or belongs to another version of JAX.
    """
    topology = xla_client.make_c_api_device_topology(
        _gpu_plugin(), "", topology=f"1x{num_hosts}x{devices_per_host}", target_config=target_config
    )
    return topology._make_compile_only_devices()


def tpu_topology_devices(topology: str, num_slices: int = 1, **options: Any) -> list[jax.Device]:
    """Return devices of TPUs that are not attached: programs can be compiled for them, not run.

    Args:
        topology: generation and torus of a slice, such as `v5e:4x4`.
        num_slices: how many slices.
        options: further options of libtpu, such as `chip_config_name`.

    Raises:
        TargetError: the compiler is not installed.
        jax.errors.JaxRuntimeError: there is no such torus.
    """
    library = None if importlib.util.find_spec("libtpu") else os.environ.get(_TPU_LIBRARY) or compiler_file("tpu")
    if library is None and importlib.util.find_spec("libtpu") is None:
        raise TargetError("the TPU compiler is not installed")
    slices = {"num_slices": num_slices} if num_slices > 1 else {}
    there_is_a_tpu = hardware_utils.num_available_tpu_chips_and_device_id()[0] > 0
    names_it = {_TPU_LIBRARY: str(library)} if library else {}
    with _environment(names_it | ({} if there_is_a_tpu else _TPU_WITHOUT_A_TPU)):
        return topologies.get_topology_desc(topology, platform="tpu", **slices, **options).devices


@functools.cache
def _gpu_plugin() -> Any:
    """Return the C API of the GPU compiler's library, loaded by JAX, or by hand if JAX refused."""
    library = gpu_library()
    # JAX loads plugins when its backend starts. A plugin can be loaded once: if ours came first, JAX would print a
    # traceback (ALREADY_EXISTS), so JAX goes first. Its check for CUDA's libraries is skipped: only running needs them.
    skip = {} if hardware_utils.has_visible_nvidia_gpu() else {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    with _environment(skip):
        xla_bridge._discover_and_register_pjrt_plugins()
    registered = xla_bridge._backend_factories.get("cuda")
    if registered is not None and registered.c_api is not None:
        plugin = registered.c_api
    else:  # JAX has looked for plugins before, and refused this one because those libraries are missing
        plugin = xla_client.load_pjrt_plugin_dynamically("cuda", str(library))
    if not xla_client.pjrt_plugin_initialized("cuda"):
        xla_client.initialize_pjrt_plugin("cuda")
    return plugin


def gpu_library() -> Path:
    """Return the file of the GPU compiler.

    Raises:
        TargetError: it is not installed, or belongs to another version of JAX.
    """
    for module, package in GPU_PLUGINS.items():
        library = _folder_of(module) / _GPU_LIBRARY
        if not library.is_file():
            continue
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if (version := importlib.metadata.version(package)) != jaxlib.__version__:
                raise TargetError(
                    f"the GPU compiler has another version than JAX: {package} {version}, jaxlib {jaxlib.__version__}"
                )
        return library
    if library := compiler_file("gpu"):
        return library
    raise TargetError("the GPU compiler is not installed")


def _folder_of(module: str) -> Path:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # `jax_plugins`, the package of all plugins, is missing
        spec = None
    return Path(spec.origin).parent if spec and spec.origin else Path("/nonexistent")


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the block, unless they are set already."""
    added = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
