"""The devices of a target: compile-only, so that programs can be compiled for them and not run; or simulated."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence

import jax
from jax.sharding import AbstractMesh, Mesh

from outlay.core.error_types import BackendStartedError, TargetError
from outlay.core.jax_compat import use_cpu_if_alone
from outlay.core.jax_topologies import gpu_topology_devices, tpu_topology_devices
from outlay.devices.hardware import Hardware, known_hardware
from outlay.devices.mesh_info import compile_only_devices, host_of, target_made_for
from outlay.devices.simulated import simulate
from outlay.devices.target import Target

# A host of a TPU pod has this many chips along each dim of the torus; a smaller slice is part of one host.
_TPU_HOST = (2, 2, 1)


def target_devices(target: Target | str) -> list[jax.Device]:
    """Return the devices of a target, the same ones at every call.

    Devices of a GPU or TPU target are compile-only: the real compiler compiles for them, on any machine, and nothing
    runs on them. Devices of a cpu target are simulated (see `outlay.simulate`).

    Args:
        target: the target, or its text.

    Raises:
        TargetError: the compiler is not installed, or does not support the hardware.

    >>> len(target_devices("cpu:8"))
    8
    """
    target = Target.parse(target) if isinstance(target, str) else target
    if not target.is_compile_only:
        try:
            simulate(target.num_devices)
        except BackendStartedError as error:
            raise BackendStartedError(
                f"the devices of target {target} are simulated, and JAX has started without them\n  {error}"
            ) from None
        return jax.devices()
    if target not in compile_only_devices:
        use_cpu_if_alone()  # else JAX would first look for such hardware here, and complain that there is none
        compile_only_devices[target] = _compile_only_devices(target)
    return compile_only_devices[target]


def target_of(mesh: Mesh | AbstractMesh) -> Target | None:
    """Return the target that a mesh belongs to, for its memory and speeds.

    For compile-only devices it is the target they were made for. Attached GPUs and TPUs are looked up by JAX's name for
    them, and CPU devices are the `cpu` hardware; None for unknown hardware.

    >>> target_of(outlay.mesh(data=4, model=2))
    Target.parse('cpu:8')
    """
    if isinstance(mesh, AbstractMesh):
        return None
    devices = list(mesh.devices.flat)
    return target_made_for(devices[0]) or _target_there(devices)


def _compile_only_devices(target: Target) -> list[jax.Device]:
    if not target.hardware.compiler:
        raise TargetError(
            f"no devices of {target}: Outlay knows no compiler for {target.hardware.name}\n"
            f"  fix: compile for simulated devices, cpu:{target.num_devices}, and price that program on it: "
            f'outlay.estimate(program, target="{target}")'
        )
    try:
        if target.hardware.kind == "gpu":
            num_hosts, per_host = target.shape
            return gpu_topology_devices(num_hosts, per_host, gpu_target_config(target.hardware))
        return _tpu_devices(*_topology(target), **_tpu_options(target))
    except TargetError as error:
        kind = target.hardware.kind
        raise TargetError(
            f"no devices of {target}: {error}\n"
            f"  fix: outlay compiler {kind}\n"
            f"  or pip install 'outlay[{kind}-plan]', of which JAX complains at every start without the hardware\n"
            f"  or plan on simulated devices, which need no compiler of their own: cpu:{target.num_devices}"
        ) from None
    except jax.errors.JaxRuntimeError as error:
        raise TargetError(
            f"no devices of {target}: the compiler refuses them\n  {error}\n"
            "  fix: use a shape that exists, or correct the hardware in your own file of targets"
        ) from error


def _tpu_devices(name: str, num_slices: int, **options: object) -> list[jax.Device]:
    from outlay.core.jax_tpu_compiler import compile_apart

    devices = tpu_topology_devices(name, num_slices, **options)
    compile_apart(devices, name, num_slices, tuple(options.items()))
    return devices


def _topology(target: Target) -> tuple[str, int]:
    torus = "x".join(map(str, target.shape))
    return f"{target.hardware.compiler['topology_prefix']}:{torus}", target.num_slices


def _tpu_options(target: Target) -> dict[str, object]:
    options: dict[str, object] = {}
    if chip := target.hardware.compiler.get("chip_config_name"):
        options["chip_config_name"] = chip
    torus = (*target.shape, 1)[:3]
    if all(size <= most for size, most in zip(torus, _TPU_HOST, strict=True)):
        options["chips_per_host_bounds"] = torus
    return options


def _target_there(devices: Sequence[jax.Device]) -> Target | None:
    known = known_hardware()
    if devices[0].platform == "cpu":
        return Target(known["cpu"], (len(devices),))
    hardware = next((kind for kind in known.values() if devices[0].device_kind in kind.device_kinds), None)
    if hardware is None:
        return None
    return _attached_gpus(hardware, devices) if hardware.kind == "gpu" else _attached_tpus(hardware, devices)


def _attached_gpus(hardware: Hardware, devices: Sequence[jax.Device]) -> Target | None:
    num_on = collections.Counter(host_of(device) for device in devices)
    num_hosts, per_host = len(num_on), max(num_on.values())
    if per_host * num_hosts != len(devices):  # hosts that differ are no target
        return None
    # A host here may have more of them than those in the table, which a target would refuse.
    most = max(per_host, hardware.devices_per_host or 1)
    return Target(dataclasses.replace(hardware, devices_per_host=most), (num_hosts, per_host))


def _attached_tpus(hardware: Hardware, devices: Sequence[jax.Device]) -> Target | None:
    # JAX gives three coordinates, on a torus of two dims too.
    columns = list(zip(*(device.coords for device in devices), strict=True))[: hardware.torus_dims]
    torus = tuple(max(column) - min(column) + 1 for column in columns)
    num_slices, left = divmod(len(devices), math.prod(torus) * hardware.devices_per_chip)
    return None if left or not num_slices else Target(hardware, torus, num_slices)


# The same on all GPUs with published tables. The versions are of libraries that the compiler may call.
_TEXT = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared_memory_per_core}
  shared_memory_per_block_optin: {shared_memory_per_block_optin}
  threads_per_core_limit: 2048
  core_count: {core_count}
  fpus_per_core: {fpus_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {memory_bandwidth}
  l2_cache_size: {l2_bytes}
  clock_rate_ghz: {clock_ghz}
  device_memory_size: {memory_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{name}"
"""


def gpu_target_config(hardware: Hardware) -> str:
    """Describe hardware for the GPU compiler, as a `GpuTargetConfigProto` in text form.

    >>> from outlay.devices.hardware import known_hardware
    >>> print(gpu_target_config(known_hardware()["h100"]).splitlines()[7].strip())
    core_count: 132
    """
    numbers = {key: _plain(value) for key, value in hardware.compiler.items() if key != "compute_capability"}
    major, minor = hardware.compiler["compute_capability"]
    name = hardware.name.replace("\\", "\\\\").replace('"', '\\"')
    return _TEXT.format(
        **numbers,
        major=major,
        minor=minor,
        name=name,
        memory_bytes=hardware.memory_bytes,
        memory_bandwidth=int(hardware.memory_bandwidth),
    )


def _plain(value: float) -> str:
    """Write a number; `80e9` in a file has to be an integer for the compiler."""
    return str(int(value)) if value == int(value) else repr(float(value))
