"""What a table of a targets file may say: each key with its type, its unit and the kinds of hardware that have it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlay.core.suggest import did_you_mean
from outlay.devices.measured import is_measured

KINDS = ("cpu", "gpu", "tpu")
DTYPES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "float4", "int8", "int4")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
"""What hardware may be called: it stands before the colon of a target."""


@dataclass(frozen=True)
class Key:
    """One key of a table.

    Attributes:
        wanted: what its value must be, for messages.
        is_right: whether a value is that.
        kinds: the kinds of hardware that have it.
        required: whether it must be there.
    """

    wanted: str
    is_right: Callable[[Any], bool]
    kinds: tuple[str, ...] = KINDS
    required: bool = True


def table_problems(key: str, table: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a table, one line each."""
    problems = [] if NAME.fullmatch(key) else [f"[{key}] must be called by small letters, digits, '.', '_' and '-'"]
    kind = table.get("kind")
    if kind not in KINDS:
        what = "is missing" if kind is None else f"is {kind!r}"
        fix = ', or begin with a table to start from: like = "h100"' if kind is None else ""
        return [*problems, f"[{key}] kind {what}; it must be one of {', '.join(map(repr, KINDS))}{fix}"]
    keys = {name: found for name, found in _KEYS.items() if kind in found.kinds}
    for name, value in table.items():
        if name not in keys:
            known = f"no key of a {kind}" if name in _KEYS else "unknown key"
            problems.append(f"[{key}] {name}: {known}, {did_you_mean(name, keys)}")
        elif not keys[name].is_right(value):
            problems.append(f"[{key}] {name} must be {keys[name].wanted}, not {_shown(value)}")
    # A GPU that no compiler is told about can be priced all the same.
    needless = () if kind != "gpu" or any(name in table for name in COMPILER_KEYS) else COMPILER_KEYS
    missing = [name for name, found in keys.items() if found.required and name not in (*table, *needless)]
    if missing:
        problems.append(f"[{key}] lacks {', '.join(missing)}")
    # Simulated devices are as slow as they are measured to be.
    return problems + ([] if kind == "cpu" else [f"[{key}] {problem}" for problem in _impossible(table)])


def _impossible(table: Mapping[str, Any]) -> Iterator[str]:
    """The numbers of the right type that no hardware has, mostly written in another unit."""
    peaks = table.get("peak_flops")
    speeds = {name: value for name, value in table.items() if name in _KEYS and name in _POSSIBLE}
    if _KEYS["peak_flops"].is_right(peaks):
        speeds |= {f"peak_flops of {dtype}": flops for dtype, flops in dict(peaks or {}).items()}
    for name, value in speeds.items():
        low, high, unit = _POSSIBLE[name.partition(" of ")[0]]
        if _is_number(value) and value > 0 and not low <= value <= high:
            yield f"{name} = {value:g} cannot be: hardware has {low:g} to {high:g} {unit}; is it in another unit?"
    memory = table.get("memory_bandwidth")
    for name in ("intra_host_link_bandwidth", "scale_out_bandwidth", "host_link_bandwidth"):
        if _is_positive(memory) and _is_positive(table.get(name)) and table[name] > memory:
            yield f"{name} = {table[name]:g} cannot be: bytes come no faster than memory gives them, {memory:g} bytes/s"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_count(value: Any) -> bool:
    return _is_positive(value) and value == int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_peak(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(k in DTYPES and _is_positive(v) for k, v in value.items())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_COUNT = Key("a whole number above 0", _is_count)
_BYTES = Key("a number of bytes, whole and above 0", _is_count)
_SPEED = Key("a number of bytes/s above 0", _is_positive)
_LATENCY = Key("a number of seconds, at least 0", lambda v: _is_number(v) and v >= 0, required=False)
_TEXT = Key("text", _is_text)


def _of(key: Key, *kinds: str, required: bool = True) -> Key:
    return Key(key.wanted, key.is_right, kinds, required)


_KEYS: dict[str, Key] = {
    "kind": Key("a kind", lambda value: value in KINDS),
    "name": _TEXT,
    "memory_bytes": _BYTES,
    "memory_bandwidth": _SPEED,
    "peak_flops": Key(f"a table of FLOP/s above 0 by dtype ({', '.join(DTYPES)})", _is_peak),
    "intra_host_link_bandwidth": _SPEED,
    "scale_out_bandwidth": _SPEED,
    "link_latency": _LATENCY,
    "scale_out_latency": _LATENCY,
    "link_floor": _LATENCY,
    "scale_out_floor": _LATENCY,
    "host_link_bandwidth": Key(_SPEED.wanted, _SPEED.is_right, required=False),
    "peak_share": Key(
        "a share of peak_flops, above 0 and at most 1", lambda v: _is_positive(v) and v <= 1, required=False
    ),
    "devices_per_host": _of(_COUNT, "gpu", "tpu"),
    "device_kinds": Key(
        "a list of texts", lambda v: isinstance(v, list) and bool(v) and all(map(_is_text, v)), required=False
    ),
    "measured": Key("the table that outlay calibrate writes", is_measured, required=False),
    "compute_capability": Key(
        "two whole numbers such as [9, 0]",
        lambda v: isinstance(v, list) and len(v) == 2 and all(type(n) is int and n >= 0 for n in v),
        ("gpu",),
    ),
    "switch_reduces_from": _of(_COUNT, "gpu", required=False),
    "links_by_pair": Key("true or false", lambda value: isinstance(value, bool), ("gpu",), required=False),
    "core_count": _of(_COUNT, "gpu"),
    "fpus_per_core": _of(_COUNT, "gpu"),
    "clock_ghz": Key("a number of GHz above 0", _is_positive, ("gpu",)),
    "l2_bytes": _of(_BYTES, "gpu"),
    "shared_memory_per_core": _of(_BYTES, "gpu"),
    "shared_memory_per_block_optin": _of(_BYTES, "gpu"),
    "topology_prefix": _of(_TEXT, "tpu"),
    "chip_config_name": _of(_TEXT, "tpu", required=False),
    "devices_per_chip": _of(_COUNT, "tpu", required=False),
    "torus_dims": Key("2 or 3", lambda value: type(value) is int and value in (2, 3), ("tpu",)),
}

# The narrowest that hold all hardware from one simulated device to a rack sold as one.
_POSSIBLE = {
    "memory_bytes": (1e3, 1e14, "bytes"),
    "memory_bandwidth": (1e7, 1e15, "bytes/s"),
    "peak_flops": (1e8, 1e18, "FLOP/s"),
    "intra_host_link_bandwidth": (1e6, 1e14, "bytes/s"),
    "scale_out_bandwidth": (1e6, 1e13, "bytes/s"),
    "host_link_bandwidth": (1e6, 1e13, "bytes/s"),
    "link_latency": (1e-9, 1, "s"),
    "scale_out_latency": (1e-9, 1, "s"),
    "link_floor": (1e-9, 1, "s"),
    "scale_out_floor": (1e-9, 1, "s"),
    "clock_ghz": (0.1, 10, "GHz"),
}

_OF_LINKS = ("torus_dims", "devices_per_chip", "switch_reduces_from", "links_by_pair")
COMPILER_KEYS = tuple(name for name, key in _KEYS.items() if len(key.kinds) == 1 and name not in _OF_LINKS)
"""Keys that only a compiler asks for."""
