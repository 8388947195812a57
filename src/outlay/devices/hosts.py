"""Which host a device belongs to."""

from __future__ import annotations

from typing import Any

from outlay.core.jax_compat import is_compile_only
from outlay.jobs.joined import host_number

_devices_per_pretended_host: int | None = None


def host_of(device: Any) -> int:
    """The host of a device, as a number.

    After `outlay.join()` that of the machine its process runs on, since several may run on one; before it, the process.
    With `outlay.simulate(..., num_hosts=)`, the host that it pretends.
    """
    if _devices_per_pretended_host is not None and device.platform == "cpu":
        return device.id // _devices_per_pretended_host
    real = host_number(device.process_index)
    return device.process_index if real is None or is_compile_only(device) else real


def pretend_hosts(devices_per_host: int | None) -> None:
    """Group devices by id on pretended hosts, so many to a host; None: a host is a process again."""
    global _devices_per_pretended_host
    _devices_per_pretended_host = devices_per_host


def pretended_devices_per_host() -> int | None:
    """Devices on each pretended host, or None where hosts are real."""
    return _devices_per_pretended_host
