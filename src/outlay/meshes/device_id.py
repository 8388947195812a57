"""What a device is called: JAX's id, or in a job of several processes the process and the place in it."""

from __future__ import annotations

import functools

import jax

from outlay.core.jax_compat import is_compile_only


class DeviceId(int):
    """The id of a device in a job of several processes.

    JAX numbers the devices of CPU processes 0, 1, 2048, 2049: such an id is compared and saved as it is, and written
    `process:index`.

    Attributes:
        process: the process that drives the device.
        index: which of that process's devices it is.

    Example:
        >>> device = DeviceId.at(2049, process=1, index=1)
        >>> device == 2049, f"device {device}"
        (True, 'device 1:1')
    """

    process: int
    index: int

    @classmethod
    def at(cls, number: int, *, process: int, index: int) -> DeviceId:
        """The id with its place."""
        made = cls(number)
        made.process, made.index = process, index
        return made

    def __str__(self) -> str:
        return f"{self.process}:{self.index}"


def device_id(device: jax.Device) -> int:
    """The id of a device; in a job of several processes one that says where it is."""
    # Compile-only devices are nobody's, and asking for the number of processes would start a backend for them.
    if is_compile_only(device) or jax.process_count() == 1:
        return device.id
    index = _ids_by_process(device.platform)[device.process_index].index(device.id)
    return DeviceId.at(device.id, process=device.process_index, index=index)


@functools.cache
def _ids_by_process(platform: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for device in sorted(jax.devices(platform), key=lambda device: device.id):
        found.setdefault(device.process_index, []).append(device.id)
    return found
