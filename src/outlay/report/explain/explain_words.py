"""Numbers and places of an explanation in words, for text and page alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from outlay.analysis.hlo.hlo_module import SourceLine
from outlay.core.quantities import format_bytes, format_seconds

if TYPE_CHECKING:
    from outlay.report.explain.explanation import Explanation

MAX_ROWS = 14
"""Lines of a table; of the others only the sum is told."""

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


def place(source: SourceLine | None) -> str:
    """A line of source; of a long path its end."""
    if source is None:
        return ""
    text = str(source)
    if len(text) <= _MAX_PATH:
        return text
    return "…/" + "/".join(PurePath(source.file).parts[-2:]) + f":{source.line}"
