"""Simulate devices: split one CPU into several JAX devices, optionally grouped on simulated hosts."""

from __future__ import annotations

import os

import jax

from outlay.core import backend_watch
from outlay.core.error_types import BackendStartedError, MeshError
from outlay.core.jax_compat import backend_is_started
from outlay.core.public_names import called_as
from outlay.core.quantities import counted
from outlay.core.runtime_flags import keep_memory, read_flags, simulated_environment
from outlay.devices.mesh_info import simulate_hosts

MAX_SIMULATED = 1024
"""The most simulated devices in one process; 4,096 could not even be listed within minutes on two cores."""

_COUNT_FLAG = "xla_force_host_platform_device_count"


@called_as("outlay.simulate(8)", devices="outlay.simulate(8)", n="outlay.simulate(8)")
def simulate(num_devices: int, *, num_hosts: int = 1) -> None:
    """Simulate several devices by splitting JAX's CPU backend. Results on them are right, timings mean nothing.

    Call it before anything uses JAX's devices; importing JAX before is fine. Calling it again with the same number
    changes nothing. From then on the process keeps freed memory for later use (with glibc, so on most Linux systems):
    steps are faster, and the process stays as large as it has been at its peak.

    Args:
        num_devices: how many devices to simulate; in a job of several processes, in each of them.
        num_hosts: how many hosts to simulate, each with an equal group of neighbouring devices.

    Raises:
        BackendStartedError: JAX has already started with other devices; the message names the call that started it.
        BackendError: `XLA_FLAGS` holds flags that XLA does not know.
        MeshError: the numbers are invalid, or `JAX_PLATFORMS` or `XLA_FLAGS` ask for something else.

    >>> outlay.simulate(8)
    >>> jax.device_count()
    8
    """
    _check_numbers(num_devices, num_hosts)
    if backend_is_started():
        _check_started(num_devices)
    else:
        _check_environment(num_devices)
        backend_watch.check_flags_once()
        keep_memory()
        os.environ.update(simulated_environment(num_devices, os.environ))
        backend_watch.check_flags_once(are_known=True)
        jax.config.update("jax_platforms", "cpu")  # else the devices would be those of an accelerator, if there is one
        jax.config.update("jax_num_cpu_devices", num_devices)
    simulate_hosts(num_devices // num_hosts if num_hosts > 1 else None)


def _check_numbers(num_devices: int, num_hosts: int) -> None:
    if odd := [each for each in (num_devices, num_hosts) if not isinstance(each, int) or isinstance(each, bool)]:
        raise MeshError(f"simulate takes a number of devices, and not {odd[0]!r:.60}\n  fix: outlay.simulate(8)")
    if num_devices < 1 or num_hosts < 1:
        raise MeshError(
            f"simulate needs at least 1 device and 1 host, not {num_devices} and {num_hosts}\n"
            "  fix: outlay.simulate(8), for example"
        )
    if num_devices > MAX_SIMULATED:
        raise MeshError(
            f"{num_devices:,} devices are too many to simulate in one process, the limit is {MAX_SIMULATED:,}: "
            "each needs threads of its own, and JAX would start for minutes and then not run\n"
            "  fix: simulate fewer, plan for an abstract mesh, or compile for hardware that is not attached: "
            'outlay.mesh(..., target="tpu-v5p:16x16x16")'
        )
    if num_devices % num_hosts:
        more = -(-num_devices // num_hosts) * num_hosts
        raise MeshError(
            f"{num_devices} devices cannot be spread evenly over {num_hosts} hosts\n"
            f"  fix: outlay.simulate({more}, num_hosts={num_hosts})"
        )
    if num_hosts > 1 and jax.distributed.is_initialized():
        raise MeshError(
            f"num_hosts={num_hosts} simulates hosts inside one process, but this is one of several processes, "
            f"whose hosts are known\n  fix: outlay.simulate({num_devices})"
        )


def _check_started(num_devices: int) -> None:
    devices = jax.local_devices()
    if devices[0].platform == "cpu" and len(devices) == num_devices:
        return
    raise BackendStartedError(
        f"outlay.simulate({num_devices}) comes too late: JAX has started with "
        f"{counted(len(devices), f'{devices[0].platform} device')}, and the number is fixed from then on\n"
        f"  {backend_watch.describe_start()}\n"
        f"  fix: move outlay.simulate({num_devices}) above it"
    )


def _check_environment(num_devices: int) -> None:
    for variable in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"):
        setting = jax.config.values.get(variable.lower())
        if setting and "cpu" not in setting.lower().split(","):
            raise MeshError(
                f"simulated devices are CPU devices, but {variable}={setting} (or the JAX setting of that name) "
                f"excludes the CPU\n  fix: unset {variable}, or set it to cpu"
            )
    count = read_flags(os.environ.get("XLA_FLAGS", "")).get(_COUNT_FLAG)
    if count is not None and count != str(num_devices):
        raise MeshError(
            f"outlay.simulate({num_devices}) asks for {num_devices} devices, but XLA_FLAGS holds "
            f"--{_COUNT_FLAG}={count}\n  fix: remove that flag from XLA_FLAGS, or call outlay.simulate({count})"
        )
