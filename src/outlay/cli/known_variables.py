"""Environment variables that change what JAX, XLA or a cluster does, each with what it does."""

from __future__ import annotations

_MEANING = {
    "CUDA_VISIBLE_DEVICES": "the GPUs that this process may see",
    "JAX_COMPILATION_CACHE_DIR": "where JAX keeps compiled programs for the next run",
    "JAX_DEBUG_NANS": "JAX checks every result for NaN, and is slow",
    "JAX_DISABLE_JIT": "JAX compiles nothing: programs cannot be laid out",
    "JAX_ENABLE_X64": "64-bit numbers instead of 32-bit",
    "JAX_NUM_CPU_DEVICES": "how many CPU devices JAX pretends to have, as outlay.simulate does",
    "JAX_PLATFORMS": "the platforms that JAX may use, the first is the default",
    "JAX_PLATFORM_NAME": "the old name of JAX_PLATFORMS, still obeyed",
    "NPROC": "threads of XLA's CPU client; outlay.simulate raises it so that devices cannot starve one another",
    "OUTLAY_TARGETS": "the file of your own hardware, for targets such as h100:1x8",
    "SLURM_JOB_ID": "this is a SLURM job",
    "SLURM_LOCALID": "which process of this node this is",
    "SLURM_NTASKS": "how many processes the job has",
    "SLURM_PROCID": "which process of the job this is",
    "XLA_FLAGS": "flags that XLA reads once, when JAX starts its backend",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "how GPU memory is allocated",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "the share of GPU memory that JAX takes at the start",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "whether JAX takes GPU memory at the start",
}
_FAMILIES = {"JAX_": "a JAX setting, read when jax is imported", "SLURM_": "set by SLURM"}


def meaning_of(variable: str) -> str:
    """What a variable does; empty for one that does not matter here.

    >>> meaning_of("JAX_LOG_COMPILES"), meaning_of("HOME")
    ('a JAX setting, read when jax is imported', '')
    """
    family = next((what for start, what in _FAMILIES.items() if variable.startswith(start)), "")
    return _MEANING.get(variable, family)
