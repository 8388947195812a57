"""What a process runs with: XLA flags, malloc settings, variables for simulated devices, installed versions.

`outlay --help` loads this file. What takes long to import (package metadata reads zip files and mail headers) is
imported in the function that needs it.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from outlay.core.error_types import MeshError

Value = str | int | bool

_WHOLE = re.compile(r"-?\d{1,18}")
# Not names of files of protocol buffers, whose dots and slashes are written as numbers.
_NAME = re.compile(rb"xla(?![a-z0-9_]*_2[ef])_[a-z0-9_]{4,90}(?=\0)")


def read_flags(text: str) -> dict[str, str]:
    """Read the flags of a text such as `$XLA_FLAGS`, by name without dashes; a flag without a value is "true".

    The last mention of a flag wins, as in XLA.

    >>> read_flags("--xla_dump_to=/dumps --xla_cpu_enable_fast_math")
    {'xla_dump_to': '/dumps', 'xla_cpu_enable_fast_math': 'true'}
    """
    flags = {}
    for word in text.split():
        name, given, value = word.removeprefix("--").partition("=")
        flags[name] = value if given else "true"
    return flags


def merge_flags(existing: str, flags: Mapping[str, Value]) -> str:
    """Add flags to a text; existing flags stay.

    Args:
        existing: the text, such as the value of `$XLA_FLAGS`.
        flags: the value of each flag, by its name without dashes.

    Raises:
        MeshError: flags are already set to other values; the message lists all of them.

    >>> merge_flags("--xla_dump_to=/dumps", {"xla_force_host_platform_device_count": 8})
    '--xla_dump_to=/dumps --xla_force_host_platform_device_count=8'
    """
    texts = {name.removeprefix("--"): flag_text(value) for name, value in flags.items()}
    given = read_flags(existing)
    conflicts = [name for name, value in texts.items() if name in given and not _is_same_value(given[name], value)]
    if conflicts:
        lines = [
            f"  --{name}={given[name]} is set, but {texts[name]} is needed\n"
            f"    fix: remove --{name}={given[name]} from XLA_FLAGS, or set it to {texts[name]}"
            for name in conflicts
        ]
        raise MeshError("\n".join(["XLA_FLAGS conflicts with what was asked for", *lines]))
    missing = [f"--{name}={value}" for name, value in texts.items() if name not in given]
    return " ".join([*([existing] if existing.strip() else []), *missing])


def typed_flags(text: str) -> dict[str, Value]:
    """Read flags as JAX takes them in `compiler_options`: booleans and integers as Python values.

    >>> typed_flags("--xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=4")
    {'xla_gpu_enable_triton_gemm': False, 'xla_gpu_autotune_level': 4}
    """
    truths = {"true": True, "false": False}
    return {
        name: truths[value.lower()] if value.lower() in truths else int(value) if _WHOLE.fullmatch(value) else value
        for name, value in read_flags(text).items()
    }


def flags_of_library(library: Path) -> set[str]:
    """Return the names of all flags in a compiler's library; no API lists them.

    Args:
        library: the file. It is searched from end to end, which takes a second.
    """
    import mmap

    names = set()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(b"xla_")
        while at >= 0:
            if name := _NAME.match(content, at):
                names.add(name[0].decode())
            at = content.find(b"xla_", at + 4)
    return names


def xla_library() -> Path | None:
    """Return the library with JAX's CPU compiler; None if this JAX is built in another way. JAX is not imported."""
    spec = importlib.util.find_spec("jaxlib")
    folders = spec.submodule_search_locations if spec else None
    return next((file for folder in folders or () for file in sorted(Path(folder).glob("libjax_common*"))), None)


def flag_text(value: Value) -> str:
    """Write the value of a flag as XLA reads it.

    >>> flag_text(True), flag_text(4)
    ('true', '4')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_same_value(one: str, other: str) -> bool:
    truths = {"true": "1", "false": "0"}
    return truths.get(one.lower(), one) == truths.get(other, other)


# Parameters of glibc's mallopt (malloc.h). Large blocks come from the heap instead of mappings of their own, which
# are returned to the system when freed; the heap does not shrink; and all threads share one heap, so that memory
# freed by one is reused by another.
_MMAP_MAX, _TRIM_THRESHOLD, _ARENA_MAX = -4, -1, -8
_SETTINGS = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _ARENA_MAX: 1}


def keep_memory() -> bool:
    """Have malloc keep freed memory from now on; the process stays as large as it has been at its peak.

    XLA's CPU backend allocates gradients and temporaries anew in each step. glibc returns blocks of that size to the
    system when they are freed, and the next step pays a page fault for every 4 KiB: a third of a step, measured.

    Returns:
        Whether it took effect: only with glibc, that is on most Linux systems. Elsewhere nothing changes.
    """
    import ctypes
    import platform

    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return min(mallopt(parameter, value) for parameter, value in _SETTINGS.items()) == 1


# XLA aborts the process when a collective waits longer than 40 s: a sign of a deadlock, but also of a busy machine
# whose few cores take turns as many devices.
_PATIENCE = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 120,
    "xla_cpu_collective_call_terminate_timeout_seconds": 600,
}
FLAGS_OF_OUTLAY = frozenset({*_PATIENCE, "xla_force_host_platform_device_count"})
"""The flags that Outlay itself sets, which each XLA that it runs on knows; their values are whole numbers."""
# Twice what is needed (measured): one for a device that waits in a collective, one for the launch of a later step.
_THREADS_PER_DEVICE = 4


def simulated_environment(num_devices: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set for simulated devices in one process, unless they are set already.

    Args:
        num_devices: devices of the process.
        environment: the variables that are set; they are kept.
    """
    flags = environment.get("XLA_FLAGS", "")
    missing = {name: value for name, value in _PATIENCE.items() if name not in read_flags(flags)}
    return {"XLA_FLAGS": merge_flags(flags, missing), **_threads(num_devices, environment)}


def _threads(num_devices: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return how to give XLA enough threads that simulated devices cannot starve one another.

    XLA's pool has as many threads as devices or cores, whichever is more. If many small steps are dispatched without
    waiting, launches of later steps occupy the threads until earlier steps are done, while an earlier step waits in a
    collective for a device that finds no thread: a deadlock, and XLA aborts the process (JAX 0.10.2; 0.12 survives the
    same loop). XLA takes the size of the pool from NPROC when it starts; a larger number that is set already stays. A
    single device starves nobody, and more threads than cores would only slow it down.
    """
    enough = _THREADS_PER_DEVICE * num_devices
    num_threads = environment.get("NPROC", "")
    if num_devices == 1 or (num_threads.isdecimal() and int(num_threads) >= enough):
        return {}
    return {"NPROC": str(max(enough, os.cpu_count() or 1))}


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the installed version of each package, None for one that is not installed.

    >>> versions(["no-such-package"])
    {'no-such-package': None}
    """
    from importlib import metadata

    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    return {package: version(package) for package in packages}
