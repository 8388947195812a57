"""What a process runs with: XLA's flags, malloc's settings, simulated devices' variables, installed versions."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import mmap
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from outlay.core.error_types import BackendError, MeshError

Value = str | int | bool

_WHOLE = re.compile(r"-?\d{1,18}")
_NAME = re.compile(rb"xla_[a-z0-9_]{4,90}(?=\0)")


def read_flags(text: str) -> dict[str, str]:
    """The flags of a text such as `$XLA_FLAGS`, by name without dashes; a flag given without a value is "true".

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
    """Add flags to a text, keeping all that is there.

    Args:
        existing: the text, such as the value of `$XLA_FLAGS`.
        flags: value of each flag by its name without dashes.

    Raises:
        MeshError: flags are set to other values already; the message lists all of them.

    >>> merge_flags("--xla_dump_to=/dumps", {"xla_force_host_platform_device_count": 8})
    '--xla_dump_to=/dumps --xla_force_host_platform_device_count=8'
    """
    texts = {name.removeprefix("--"): _text(value) for name, value in flags.items()}
    given = read_flags(existing)
    conflicts = [name for name, value in texts.items() if name in given and not _same(given[name], value)]
    if conflicts:
        lines = [
            f"  --{name}={given[name]} is set, but {texts[name]} is needed\n"
            f"    fix: remove --{name}={given[name]} from XLA_FLAGS, or set it to {texts[name]}"
            for name in conflicts
        ]
        raise MeshError("\n".join(["XLA_FLAGS conflicts with what is asked for", *lines]))
    missing = [f"--{name}={value}" for name, value in texts.items() if name not in given]
    return " ".join([*([existing] if existing.strip() else []), *missing])


def typed_flags(text: str) -> dict[str, Value]:
    """The flags of a text as JAX wants them for a single program: truths and whole numbers as such.

    >>> typed_flags("--xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=4")
    {'xla_gpu_enable_triton_gemm': False, 'xla_gpu_autotune_level': 4}
    """
    truths = {"true": True, "false": False}
    return {
        name: truths[value.lower()] if value.lower() in truths else int(value) if _WHOLE.fullmatch(value) else value
        for name, value in read_flags(text).items()
    }


def flags_of_library(library: Path) -> set[str]:
    """The names of all flags that stand in the file of a compiler, which tells them in no other way.

    Args:
        library: the file; it is searched from end to end, which takes a second.
    """
    names = set()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(b"xla_")
        while at >= 0:
            if name := _NAME.match(content, at):
                names.add(name[0].decode())
            at = content.find(b"xla_", at + 4)
    return names


def xla_library() -> Path | None:
    """The file of JAX's own compiler, for the CPU; None where JAX is built otherwise. JAX is not imported for it."""
    spec = importlib.util.find_spec("jaxlib")
    folders = spec.submodule_search_locations if spec else None
    return next((file for folder in folders or () for file in sorted(Path(folder).glob("libjax_common*"))), None)


_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: (.*)")
_REFUSED = re.compile(rf"{_UNKNOWN.pattern}|Couldn't interpret value .*")


def refusal_of_flags(environment: Mapping[str, str]) -> str:
    """Return what XLA says when it ends the process that starts it because of `XLA_FLAGS`; empty where it does not.

    No process can catch that, so another one tries it out, which takes a second or two.
    """
    import subprocess  # the launcher's help would take longer

    try_out = [sys.executable, "-P", "-c", "import jax; jax.devices('cpu')"]  # -P: not a jax.py that lies here
    on_cpu = {**environment, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(try_out, env=on_cpu, capture_output=True, text=True, errors="replace", check=False)
    refusal = _REFUSED.search(done.stderr) if done.returncode else None
    return refusal[0] if refusal else ""


def check_flags() -> None:
    """Raise BackendError if `XLA_FLAGS` holds flags that XLA does not know, before XLA ends this process for it.

    It costs nothing where Outlay alone has set flags. Others are looked up in XLA's library, which takes half a
    second, and only if one is not there XLA is asked.
    """
    unknown = _unknown_flags(frozenset(_flag_words(os.environ.get("XLA_FLAGS", ""))) - _OURS)
    if not unknown:
        return
    from outlay.core.quantities import counted
    from outlay.core.suggest import did_you_mean

    library = xla_library()
    known = sorted(flags_of_library(library)) if library else []
    lines = []
    for flag in unknown:
        hint = did_you_mean(flag.lstrip("-").partition("=")[0], known)
        lines.append(f"  {flag}{f': {hint}' if hint.startswith('did') else ''}")
    raise BackendError(
        "\n".join(
            [
                f"XLA_FLAGS holds {counted(len(unknown), 'flag')} that XLA does not know, so JAX cannot start",
                *lines,
                "  fix: correct the name, or take it out of XLA_FLAGS; flags come and go with versions, and this is "
                f"jaxlib {versions(('jaxlib',))['jaxlib']}",
            ]
        )
    )


@functools.cache
def _unknown_flags(names: frozenset[str]) -> tuple[str, ...]:
    """Return the words of `XLA_FLAGS` that XLA does not know; asked of XLA, if some of these names are not in it."""
    library = xla_library() if names else None
    if not names or (library and names <= flags_of_library(library)):
        return ()
    unknown = _UNKNOWN.search(refusal_of_flags(os.environ))
    return tuple(unknown[1].split()) if unknown else ()


def _flag_words(text: str) -> list[str]:
    """Return the names of the flags; a text that does not begin with a dash names the file that holds them."""
    if text.strip() and not text.lstrip().startswith("-"):
        try:
            text = Path(text.strip()).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return []
    return list(read_flags(text))


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _same(one: str, other: str) -> bool:
    truths = {"true": "1", "false": "0"}
    return truths.get(one.lower(), one) == truths.get(other, other)


# Parameters of glibc's mallopt (malloc.h). Large blocks come from the heap instead of maps of their own, which are
# given back when freed; the heap does not shrink; and all threads share one, so that what one frees another can take.
_MMAP_MAX, _TRIM_THRESHOLD, _ARENA_MAX = -4, -1, -8
_SETTINGS = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _ARENA_MAX: 1}


def keep_memory() -> bool:
    """Have malloc keep the memory that is freed from now on; the process then stays as large as it has been.

    XLA's CPU backend takes the memory for gradients and temporaries anew at each step. glibc gives blocks of that size
    back to the system when they are freed, and the next step pays for a page fault every 4 KiB: a third of the step's
    time was measured.

    Returns:
        Whether it is so now: only with glibc, that is on most Linux systems; elsewhere nothing changes.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return min(mallopt(parameter, value) for parameter, value in _SETTINGS.items()) == 1


# XLA ends the process when a collective waits longer than 40 s, which a real bug does but also a busy machine whose
# few cores take turns as many devices.
_PATIENCE = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 120,
    "xla_cpu_collective_call_terminate_timeout_seconds": 600,
}
_OURS = {*_PATIENCE, "xla_force_host_platform_device_count"}  # known to each XLA that Outlay runs on
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
    num_threads = environment.get("NPROC", "")
    if num_devices == 1 or (num_threads.isdecimal() and int(num_threads) >= enough):
        return {}
    return {"NPROC": str(max(enough, os.cpu_count() or 1))}


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The installed version of each package, None for one that is not installed.

    >>> versions(["no-such-package"])
    {'no-such-package': None}
    """
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
