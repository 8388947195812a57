"""The memory that XLA's scheduler for GPUs plans with: that of the pool which the run will have."""

from __future__ import annotations

from collections.abc import Mapping

from jax.sharding import Mesh

from outlay.core.jax_compat import is_compile_only
from outlay.core.memory_pool import asked_fraction
from outlay.core.runtime_flags import Value

SCHEDULER_MEMORY = "xla_gpu_memory_limit_slop_factor"
"""The option that says with how much memory XLA's scheduler plans: hundredths of `SCHEDULER_SHARE` of a GPU's."""

SCHEDULER_SHARE = 0.8
"""What XLA takes a GPU's memory to be, before what goes in and out of a program is subtracted."""

SCHEDULER_DEFAULT = 95
"""XLA's own value of `SCHEDULER_MEMORY`."""


def within_pool(values: Mapping[str, Value], mesh: Mesh) -> Mapping[str, Value]:
    """Return options with the memory that a run will have for the scheduler: that of its pool.

    Args:
        values: the options of a preset for GPUs.
        mesh: the GPUs.
    """
    if SCHEDULER_MEMORY not in values:
        return values
    if asked := asked_fraction():
        return {**values, SCHEDULER_MEMORY: int(asked.share * 100 / SCHEDULER_SHARE)}
    if is_compile_only(mesh.devices.flat[0]):
        return values  # the report says which pool to ask for
    return {name: value for name, value in values.items() if name != SCHEDULER_MEMORY}
