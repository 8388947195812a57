"""Why a candidate lost, in words with numbers."""

from __future__ import annotations

from outlay.core.sizes import format_bytes
from outlay.report.estimate.render import format_flops, format_seconds
from outlay.search.expect import Expectation
from outlay.search.price import Price

_ALIKE = 0.01
"""Times that differ by less than this share are the same as far as an estimate knows."""


def is_tie(one: Price, other: Price) -> bool:
    """Whether the estimates say nothing about which is faster."""
    return abs(one.seconds - other.seconds) <= _ALIKE * min(one.seconds, other.seconds)


def why_slower(loser: Price, winner: Price) -> str:
    """What costs a candidate that fits the first place."""
    if is_tie(loser, winner):
        return (
            f"as fast, as far as an estimate knows, with {format_bytes(loser.peak_bytes)} of memory against "
            f"{format_bytes(winner.peak_bytes)}"
        )
    part = max(loser.parts, key=lambda name: loser.parts[name] - winner.parts.get(name, 0.0))
    reasons = {"communication": _communication, "products": _compute, "kernels": _compute}
    reason = reasons.get(part, _other)(loser, winner, part)
    return f"{_times(loser.seconds, winner.seconds)} the time: {reason}"


def why_too_big(price: Price) -> str:
    """What the compiler says of a program that does not fit."""
    return f"needs {format_bytes(price.peak_bytes)} of {format_bytes(price.capacity)} a device"


def why_not_compiled(expected: Expectation, capacity: int) -> str:
    """What the arithmetic had against a candidate that had no turn."""
    what = f"the arithmetic expects {format_seconds(expected.seconds)} and {format_bytes(expected.num_bytes)} a device"
    if expected.num_bytes > capacity:
        return f"ranked below: {what}, of {format_bytes(capacity)}"
    return f"ranked below: {what}"


def _communication(loser: Price, winner: Price, part: str) -> str:
    more = {axes: spent - winner.seconds_by_axes.get(axes, 0.0) for axes, spent in loser.seconds_by_axes.items()}
    axes = max(more, key=lambda name: more[name], default="")
    sent, less = loser.bytes_by_axes.get(axes, 0), winner.bytes_by_axes.get(axes, 0)
    if sent <= less:  # as much, in more or slower exchanges
        return _other(loser, winner, part)
    where = f"over {axes}" if axes else "between devices"
    where += " between hosts" if axes in loser.crossing else ""
    if not less:
        return f"moves {format_bytes(sent)} {where}, where the first moves nothing"
    return f"moves {_times(sent, less)} the bytes {where} ({format_bytes(sent)} against {format_bytes(less)})"


def _compute(loser: Price, winner: Price, part: str) -> str:
    if loser.flops <= winner.flops or not winner.flops:
        return _other(loser, winner, part)
    work = f"{format_flops(loser.flops)} against {format_flops(winner.flops)}"
    return f"computes {_times(loser.flops, winner.flops)} as much on each device ({work})"


def _other(loser: Price, winner: Price, part: str) -> str:
    what = {
        "communication": "waiting for collectives",
        "products": "in matrix products",
        "kernels": "in kernels",
        "memory": "moving data in memory",
    }
    times = f"{format_seconds(loser.parts[part])} against {format_seconds(winner.parts.get(part, 0.0))}"
    return f"spends {times} {what.get(part, f'on {part}')}"


def _times(more: float, less: float) -> str:
    ratio = more / less
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:,.0f}x"
