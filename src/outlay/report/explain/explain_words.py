"""Numbers and places of an explanation in words, for text and page alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from outlay.analysis.hlo.hlo_module import SourceLine
from outlay.core.sizes import format_bytes

if TYPE_CHECKING:
    from outlay.report.explain.explanation import Explanation

_MAX_PATH = 34


def verdict(found: Explanation) -> Iterator[tuple[str, str]]:
    """The answer in a line or two, each with the style of its colour."""
    memory, estimate = found.memory, found.estimate
    if found.fits is False:
        peak = (
            f": peak {format_bytes(memory.peak)}, a device has {format_bytes(memory.capacity)}"
            if memory and (memory.capacity)
            else ""
        )
        yield f"does not fit{peak}", "bold red"
    elif found.fits and memory and memory.capacity:
        share = memory.peak / memory.capacity
        tight = memory.verdict == "may not fit"
        left = f"; JAX takes {format_bytes(memory.pool)}" if tight else ""
        on_host = f", {format_bytes(memory.on_host)} on the host" if memory.on_host else ""
        yield (
            f"{memory.verdict}: peak {format_bytes(memory.peak)} of {format_bytes(memory.capacity)} a device, "
            f"{share:.0%}{left}{on_host}",
            "bold yellow" if tight else "bold green",
        )
    elif memory:
        yield f"peak {format_bytes(memory.peak)} a device", ""
    if estimate is not None:
        low, high = format_seconds(estimate.seconds_low), format_seconds(estimate.seconds_high)
        parts = ", ".join(f"{name} {format_seconds(part)}" for name, part in estimate.parts.items() if part)
        yield f"a step would take {format_seconds(estimate.seconds)} ({low} to {high}): {parts}", ""


def format_seconds(seconds: float) -> str:
    """A time for people.

    >>> format_seconds(0.0), format_seconds(3.2e-6), format_seconds(0.0125), format_seconds(2.5)
    ('0', '3.2 µs', '12.5 ms', '2.50 s')
    """
    if seconds <= 0:
        return "0"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def format_count(count: int) -> str:
    """A number with its thousands apart."""
    return f"{count:,}"


def in_words(runs: int) -> str:
    """How often, in words.

    >>> in_words(1), in_words(2), in_words(48)
    ('once', 'twice', '48 times')
    """
    return {1: "once", 2: "twice"}.get(runs, f"{runs:,} times")


def format_flops(flops: float) -> str:
    """Floating-point operations for people.

    >>> format_flops(12345.0), format_flops(3.2e15)
    ('12.3 kFLOP', '3.2 PFLOP')
    """
    for unit in ("", "k", "M", "G", "T", "P"):
        if flops < 1000 or unit == "P":
            return f"{flops:.0f} FLOP" if not unit else f"{flops:.1f} {unit}FLOP"
        flops /= 1000
    raise AssertionError("unreachable")


def place(source: SourceLine | None) -> str:
    """A line of source; of a long path its end."""
    if source is None:
        return ""
    text = str(source)
    if len(text) <= _MAX_PATH:
        return text
    return "…/" + "/".join(PurePath(source.file).parts[-2:]) + f":{source.line}"
