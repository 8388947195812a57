"""Read files of targets, overlay them on the built-in tables, and check the keys of each kind of hardware."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outlay.core.error_types import TargetError
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.core.toml import parse_toml, read_toml_text
from outlay.devices.measured import is_measured

Table = dict[str, Any]

KINDS = ("cpu", "gpu", "tpu")
DTYPES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "float4", "int8", "int4")
FAMILIES = ("a100", "h100", "b200", "mi300x", "v5p", "v6e")
"""Chips that reach the same share of their data sheet, by the first of them."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
"""The syntax of a hardware's key, which stands before the colon of a target."""
PRICE = re.compile(r"(\d+(?:\.\d+)?) ([A-Z]{3})")
"""The syntax of a price: an amount, and the three letters of its currency."""


def read_tables(path: Path) -> dict[str, Table]:
    """Read the tables of a file, by key.

    Raises:
        TargetError: the file cannot be read, is not TOML, or holds anything but tables.
    """
    text = read_toml_text(path, "the file of targets", TargetError)
    tables = parse_toml(text, str(path), TargetError, "correct the syntax there; see https://toml.io")
    if bare := [key for key, value in tables.items() if not isinstance(value, dict)]:
        raise TargetError(
            f"{path} holds {', '.join(map(repr, bare))} outside of a table\n"
            "  fix: begin with the name of the hardware in brackets, such as [h100]"
        )
    return tables


def overlay(built_in: Mapping[str, Table], changes: Mapping[str, Table], path: Path) -> dict[str, Table]:
    """Overlay changes on the built-in tables: change single numbers, and add new tables.

    A table with `like = "h100"` starts from that one, any other from the built-in table of its own name, if there is
    one.

    Args:
        built_in: the tables to start from.
        changes: the tables of the user's file.
        path: that file, for messages.

    Raises:
        TargetError: a table is incomplete or holds impossible values; the message lists every problem.
    """
    problems: list[str] = []
    tables = dict(built_in)
    for key in changes:
        table = _inherited(key, built_in, changes, problems)
        if table is not None:
            tables[key] = table
            problems += table_problems(key, table)
    if problems:
        headline = f"{path} has {counted(len(problems), 'problem')}"
        raise TargetError("\n".join([headline, *(f"  {problem}" for problem in problems)]))
    return tables


def _inherited(
    key: str, built_in: Mapping[str, Table], changes: Mapping[str, Table], problems: list[str]
) -> Table | None:
    """Return a table of the user's file with what it inherits; None, and a problem, if that is unknown."""
    layers, at, seen = [changes[key]], key, [key]
    while (like := layers[-1].get("like")) is not None:
        at = like
        known = [*built_in, *(other for other in changes if other not in built_in)]
        if not isinstance(like, str) or at not in known:
            problems.append(f"[{seen[-1]}] like = {like!r}: there is no such table, {did_you_mean(str(like), known)}")
            return None
        if at in seen and at not in built_in:
            problems.append(f"[{key}] like refers back to itself: {' -> '.join([*seen, at])}")
            return None
        # By its own name a changed table means its built-in version.
        layers.append(changes[at] if at in changes and at not in seen else built_in[at])
        seen.append(at)
    if at in built_in and layers[-1] is not built_in[at]:
        layers.append(built_in[at])
    return functools.reduce(_merged, reversed(layers), {})


def _merged(below: Table, above: Table) -> Table:
    """Overlay one table on another, nested tables too; the keys of the upper one come first."""
    merged = {}
    for name, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(name), dict)
        merged[name] = _merged(below[name], value) if both else value
    merged.pop("like", None)
    return merged | {name: value for name, value in below.items() if name not in above}


@dataclass(frozen=True)
class Key:
    """One key of a table.

    Attributes:
        description: what a value must be, for messages.
        is_valid: whether a value is valid.
        kinds: the kinds of hardware that have the key.
        required: whether the key must be present.
    """

    description: str
    is_valid: Callable[[Any], bool]
    kinds: tuple[str, ...] = KINDS
    required: bool = True


def table_problems(key: str, table: Mapping[str, Any]) -> list[str]:
    """List everything that is wrong with a table, one line per problem."""
    problems = [] if NAME.fullmatch(key) else [f"[{key}] must be named with small letters, digits, '.', '_' and '-'"]
    kind = table.get("kind")
    if kind not in KINDS:
        what = "is missing" if kind is None else f"is {kind!r}"
        fix = ', or begin with a table to start from: like = "h100"' if kind is None else ""
        return [*problems, f"[{key}] kind {what}; it must be one of {', '.join(map(repr, KINDS))}{fix}"]
    keys = {name: entry for name, entry in _KEYS.items() if kind in entry.kinds}
    for name, value in table.items():
        if name not in keys:
            known = f"no key of a {kind}" if name in _KEYS else "unknown key"
            problems.append(f"[{key}] {name}: {known}, {did_you_mean(name, keys)}")
        elif not keys[name].is_valid(value):
            problems.append(f"[{key}] {name} must be {keys[name].description}, not {_shown(value)}")
    # A GPU without any key for the compiler can be priced, though nothing is compiled for it.
    optional = () if kind != "gpu" or any(name in table for name in COMPILER_KEYS) else COMPILER_KEYS
    missing = [name for name, entry in keys.items() if entry.required and name not in (*table, *optional)]
    if missing:
        problems.append(f"[{key}] lacks {', '.join(missing)}")
    # A CPU may be as slow as it is measured to be, so no bounds hold for it.
    return problems + ([] if kind == "cpu" else [f"[{key}] {problem}" for problem in _impossible(table)])


def _impossible(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield numbers of the right type that no hardware has, usually because they are in another unit."""
    peaks = table.get("peak_flops")
    speeds = {name: value for name, value in table.items() if name in _KEYS and name in _POSSIBLE}
    if _KEYS["peak_flops"].is_valid(peaks):
        speeds |= {f"peak_flops of {dtype}": flops for dtype, flops in dict(peaks or {}).items()}
    for name, value in speeds.items():
        low, high, unit = _POSSIBLE[name.partition(" of ")[0]]
        if _is_number(value) and value > 0 and not low <= value <= high:
            yield f"{name} = {value:g} is impossible: hardware has {low:g} to {high:g} {unit}; is it in another unit?"
    yield from _impossible_watts(table)
    memory = table.get("memory_bandwidth")
    for name in ("intra_host_link_bandwidth", "scale_out_bandwidth", "host_link_bandwidth"):
        if _is_positive(memory) and _is_positive(table.get(name)) and table[name] > memory:
            yield (
                f"{name} = {table[name]:g} is impossible: it exceeds the {memory:g} bytes/s of memory_bandwidth, "
                "and no bytes arrive faster than memory delivers them"
            )


def _impossible_watts(table: Mapping[str, Any]) -> Iterator[str]:
    watts, rated = table.get("watts", 0.0), table.get("rated_watts", 0.0)
    if not _is_positive(watts):
        return
    if not _is_positive(rated):
        yield "watts is a limit, and rated_watts is missing: add the power at which peak_flops are reached"
    elif not _LEAST_POWER * rated <= watts <= rated:
        yield (
            f"watts = {watts:g} is impossible: such a device can be limited to {_LEAST_POWER * rated:g} to {rated:g} W "
            "(rated_watts); say a limit in between, or leave watts out"
        )


def _is_number(value: Any) -> bool:
    # TOML has true, inf and nan; Python counts the first as an integer.
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


_KEYS: dict[str, Key] = {
    "kind": Key("a kind", lambda value: value in KINDS),
    "name": _TEXT,
    "family": Key(f"one of {', '.join(FAMILIES)}", lambda value: value in FAMILIES, ("gpu", "tpu"), required=False),
    "memory_bytes": _BYTES,
    "memory_bandwidth": _SPEED,
    "peak_flops": Key(f"a table of FLOP/s above 0 by dtype ({', '.join(DTYPES)})", _is_peak),
    "intra_host_link_bandwidth": _SPEED,
    "scale_out_bandwidth": _SPEED,
    "link_latency": _LATENCY,
    "scale_out_latency": _LATENCY,
    "link_floor": _LATENCY,
    "scale_out_floor": _LATENCY,
    "host_link_bandwidth": replace(_SPEED, required=False),
    "peak_share": Key(
        "a share of peak_flops, above 0 and at most 1", lambda v: _is_positive(v) and v <= 1, required=False
    ),
    "rated_watts": Key("a number of watts above 0", _is_positive, ("gpu",), required=False),
    "watts": Key("a number of watts above 0", _is_positive, ("gpu",), required=False),
    "price_per_hour": Key(
        'an amount and a currency, such as "2.5 USD"',
        lambda value: isinstance(value, str) and PRICE.fullmatch(value) is not None,
        required=False,
    ),
    "devices_per_host": replace(_COUNT, kinds=("gpu", "tpu")),
    "device_kinds": Key(
        "a list of texts", lambda v: isinstance(v, list) and bool(v) and all(map(_is_text, v)), required=False
    ),
    "measured": Key("the table that outlay calibrate writes", is_measured, required=False),
    "compute_capability": Key(
        "two whole numbers such as [9, 0]",
        lambda v: isinstance(v, list) and len(v) == 2 and all(type(n) is int and n >= 0 for n in v),
        ("gpu",),
    ),
    "switch_reduces_from": replace(_COUNT, kinds=("gpu",), required=False),
    "links_by_pair": Key("true or false", lambda value: isinstance(value, bool), ("gpu",), required=False),
    "core_count": replace(_COUNT, kinds=("gpu",)),
    "fpus_per_core": replace(_COUNT, kinds=("gpu",)),
    "clock_ghz": Key("a number of GHz above 0", _is_positive, ("gpu",)),
    "l2_bytes": replace(_BYTES, kinds=("gpu",)),
    "shared_memory_per_core": replace(_BYTES, kinds=("gpu",)),
    "shared_memory_per_block_optin": replace(_BYTES, kinds=("gpu",)),
    "topology_prefix": replace(_TEXT, kinds=("tpu",)),
    "chip_config_name": replace(_TEXT, kinds=("tpu",), required=False),
    "devices_per_chip": replace(_COUNT, kinds=("tpu",), required=False),
    "torus_dims": Key("2 or 3", lambda value: type(value) is int and value in (2, 3), ("tpu",)),
}

# Bounds as narrow as all hardware allows, from one simulated device to a rack that is sold as one device.
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
    "rated_watts": (5, 1e5, "W"),
}

# GPUs accept no limit below a quarter of their rated power: an A100 100 of 400 W, an H100 200 of 700 W.
_LEAST_POWER = 0.25

_PRICE_KEYS = (
    "family",
    "rated_watts",
    "watts",
    "torus_dims",
    "devices_per_chip",
    "switch_reduces_from",
    "links_by_pair",
)
COMPILER_KEYS = tuple(name for name, key in _KEYS.items() if len(key.kinds) == 1 and name not in _PRICE_KEYS)
"""Keys that only a compiler needs."""
