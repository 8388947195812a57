"""A GPU in the words of its compiler: XLA's `GpuTargetConfigProto` as text. Pure."""

from __future__ import annotations

from outlay.meshes.hardware import Hardware

# Equal on all GPUs that there are tables for; versions of the libraries that the compiler may call.
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
    """What the GPU compiler wants to know of the hardware.

    >>> from outlay.meshes.hardware import known_hardware
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
    """`80e9` of a file is a whole number to the compiler."""
    return str(int(value)) if value == int(value) else repr(float(value))
