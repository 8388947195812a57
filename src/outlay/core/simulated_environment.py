"""The variables that simulated CPU devices need, as XLA reads them when it starts. Nothing here imports JAX."""

from __future__ import annotations

import os
from collections.abc import Mapping

from outlay.core.xla_flags import merge_flags, read_flags

# XLA ends the process when a collective waits longer than 40 s, which a real bug does but also a busy machine whose
# few cores take turns as many devices.
_PATIENCE = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 120,
    "xla_cpu_collective_call_terminate_timeout_seconds": 600,
}
# Twice what is needed (measured): one for a device that waits in a collective, one for the launch of a later step.
_THREADS_PER_DEVICE = 4


def simulated_environment(num_devices: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set besides those that are set, for so many simulated devices in one process.

    Args:
        num_devices: devices of the process.
        environment: what is set already; it is kept.
    """
    flags = environment.get("XLA_FLAGS", "")
    missing = {name: value for name, value in _PATIENCE.items() if name not in read_flags(flags)}
    return {"XLA_FLAGS": merge_flags(flags, missing), **_threads(num_devices, environment)}


def _threads(num_devices: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Enough threads that simulated devices cannot starve one another.

    XLA's pool has as many threads as there are devices or cores. When many small steps are dispatched without waiting
    for results, the launches of later steps hold them until earlier steps are done, and an earlier step waits in a
    collective for a device that finds no thread: nobody moves, and XLA ends the process. XLA takes the size of the
    pool from NPROC when it starts. A larger number that is set already stays. A single device starves nobody, and
    threads beyond the cores it has would only take turns with the one that works.
    """
    enough = _THREADS_PER_DEVICE * num_devices
    found = environment.get("NPROC", "")
    if num_devices == 1 or (found.isdecimal() and int(found) >= enough):
        return {}
    return {"NPROC": str(max(enough, os.cpu_count() or 1))}
