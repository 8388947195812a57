"""Limits that a placed program must keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlay.core.sizes import format_bytes
from outlay.report.hlo.collective import CollectiveKind
from outlay.report.placed.explanation import PlacedExplanation
from outlay.report.placed.words import rate

_OF_ROWS: CollectiveKind = "all-gather"
"""How the devices of one part exchange its rows; between parts there are no collectives."""


def broken_by_parts(
    found: PlacedExplanation, max_bytes: int | None, max_memory: int | None, forbid: Sequence[CollectiveKind]
) -> Iterator[str]:
    """Each limit that it does not keep, in words; the arguments are those of `broken_budgets`."""
    sent: dict[int, float] = {}
    for one in found.sent:
        # Of several devices that hold what others read, the first sends it.
        for device in one.origin if one.is_within else one.origin[:1]:
            sent[device] = sent.get(device, 0.0) + (one.num_bytes if one.is_within else one.bytes_in_all)
    most = max(sent.values(), default=0)
    if max_bytes is not None and most > max_bytes:
        yield f"a device sends {rate(most)} a step, {format_bytes(max_bytes)} are allowed"
    if max_memory is not None and found.peak is None:
        yield "the memory that a device needs is not known: there are no figures from the compiler"
    elif max_memory is not None and found.peak is not None and found.peak > max_memory:
        yield f"a device needs {format_bytes(found.peak)}, {format_bytes(max_memory)} are allowed"
    within = [one for one in found.sent if one.is_within]
    if _OF_ROWS in forbid and within:
        yield f"{_OF_ROWS} is forbidden, and exchanges rows of {', '.join(one.part for one in within)}"
