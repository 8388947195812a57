"""XLA's flags as text: merged into what is set already, never overwriting it."""

from __future__ import annotations

from collections.abc import Mapping

from outlay.core.errors import MeshError

Value = str | int | bool


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


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _same(found: str, wanted: str) -> bool:
    truths = {"true": "1", "false": "0"}
    return truths.get(found.lower(), found) == truths.get(wanted, wanted)
