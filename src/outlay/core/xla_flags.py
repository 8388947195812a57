"""XLA's flags as text: merged into what is set already, never overwriting it."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from pathlib import Path

from outlay.core.errors import MeshError

Value = str | int | bool

_WHOLE = re.compile(r"-?\d{1,18}")
_NAME = re.compile(rb"xla_[a-z0-9_]{4,90}(?=\0)")


def read_flags(text: str) -> dict[str, str]:
    """The flags of a text such as `$XLA_FLAGS`, by name without dashes; a flag given without a value is "true".

    The last mention of a flag wins, as in XLA.

    >>> read_flags("--xla_dump_to=/dumps --xla_cpu_enable_fast_math")
    {'xla_dump_to': '/dumps', 'xla_cpu_enable_fast_math': 'true'}
    """
    found = {}
    for word in text.split():
        name, given, value = word.removeprefix("--").partition("=")
        found[name] = value if given else "true"
    return found


def merge_flags(existing: str, wanted: Mapping[str, Value]) -> str:
    """Add flags to a text, keeping all that is there.

    Args:
        existing: the text, such as the value of `$XLA_FLAGS`.
        wanted: value of each flag by its name without dashes.

    Raises:
        MeshError: flags are set to other values already; the message lists all of them.

    >>> merge_flags("--xla_dump_to=/dumps", {"xla_force_host_platform_device_count": 8})
    '--xla_dump_to=/dumps --xla_force_host_platform_device_count=8'
    """
    texts = {name.removeprefix("--"): _text(value) for name, value in wanted.items()}
    found = read_flags(existing)
    conflicts = [name for name, value in texts.items() if name in found and not _same(found[name], value)]
    if conflicts:
        lines = [
            f"  --{name}={found[name]} is set, but {texts[name]} is needed\n"
            f"    cure: remove --{name}={found[name]} from XLA_FLAGS, or set it to {texts[name]}"
            for name in conflicts
        ]
        raise MeshError("\n".join(["XLA_FLAGS conflicts with what is asked for", *lines]))
    missing = [f"--{name}={value}" for name, value in texts.items() if name not in found]
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
    found = set()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = content.find(b"xla_")
        while at >= 0:
            if name := _NAME.match(content, at):
                found.add(name[0].decode())
            at = content.find(b"xla_", at + 4)
    return found


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _same(found: str, wanted: str) -> bool:
    truths = {"true": "1", "false": "0"}
    return truths.get(found.lower(), found) == truths.get(wanted, wanted)
