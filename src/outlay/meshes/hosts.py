"""Which host a device belongs to."""

from __future__ import annotations

from typing import Any

_devices_per_pretended_host: int | None = None


def host_of(device: Any) -> int:
    """The host of a device: the process that drives it, or the host that `outlay.simulate` pretends it is on."""
    if _devices_per_pretended_host is None or device.platform != "cpu":
        return device.process_index
    return device.id // _devices_per_pretended_host


def pretend_hosts(devices_per_host: int | None) -> None:
    """Group devices by id on pretended hosts, so many to a host; None: a host is a process again."""
    global _devices_per_pretended_host
    _devices_per_pretended_host = devices_per_host


def pretended_devices_per_host() -> int | None:
    """Devices on each pretended host, or None where hosts are real."""
    return _devices_per_pretended_host
