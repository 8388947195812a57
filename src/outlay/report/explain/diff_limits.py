"""Limits on what may change between two reports, for CI: `memory>+2%`, `all-gather>+0`, `memory>60GiB`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from outlay.analysis.hlo.hlo_collectives import CollectiveKind
from outlay.core.error_types import ExplainError
from outlay.core.quantities import format_bytes, format_flops, format_seconds
from outlay.core.suggest import did_you_mean
from outlay.report.explain.budgets import read_size

_LIMIT = re.compile(r"\s*([\w-]+)\s*>\s*(\+?)\s*(\d+(?:\.\d+)?)\s*([a-zµ%]*)\s*", re.IGNORECASE)
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_NOT_KINDS = ("memory", "time", "sent", "flops", "trace", "compile")
_TIMES = ("time", "trace", "compile")


@dataclass(frozen=True)
class Limit:
    """A limit on one figure.

    Attributes:
        text: as it was written.
        figure: `memory`, `time`, `sent`, `flops`, the seconds to `trace` and `compile` the program, or a kind of
            collective, whose bytes in a step count.
        most: the most that is allowed: in the figure's unit, or as a share of what it was before.
        is_change: whether the limit is on the growth, and not on the figure itself.
        is_share: whether the growth is counted as a share of what it was before.
    """

    text: str
    figure: str
    most: float
    is_change: bool
    is_share: bool


def read_limit(text: str) -> Limit:
    """Parse a limit.

    >>> read_limit("memory>+2%").most, read_limit("all-gather>+0").is_change, read_limit("time>5ms").most
    (0.02, True, 0.005)

    Raises:
        ExplainError: it is not one, or there is no such figure.
    """
    known = (*_NOT_KINDS, *get_args(CollectiveKind))
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise ExplainError(
            f"{text!r} is not a limit\n"
            "  fix: write a figure, > and how much: memory>+2%, sent>+10MiB, all-gather>+0, memory>60GiB, time>5ms"
        )
    figure, plus, number, unit = match.groups()
    if figure not in known:
        raise ExplainError(f"{text!r}: there is no figure {figure!r}: {did_you_mean(figure, known)}")
    if unit == "%":
        if not plus:
            raise ExplainError(f"{text!r}: a share is one of what it was before\n  fix: {figure}>+{number}%")
        return Limit(text, figure, float(number) / 100, is_change=True, is_share=True)
    return Limit(text, figure, _amount(text, figure, number, unit), is_change=bool(plus), is_share=False)


def broken_limits(limits: Sequence[Limit], before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each limit that the second report exceeds.

    A figure that the second report lacks counts as exceeded.

    Args:
        limits: the limits.
        before: the first report, as `Explanation.to_dict()` returns it.
        after: the second.
    """
    sentences = (_broken(limit, _figure(before, limit.figure), _figure(after, limit.figure)) for limit in limits)
    return tuple(sentence for sentence in sentences if sentence)


def _broken(limit: Limit, before: float | None, after: float | None) -> str:
    words = {**dict.fromkeys(_TIMES, format_seconds), "flops": format_flops}.get(limit.figure)
    words = words or (lambda number: format_bytes(int(number)))
    if after is None or (limit.is_change and before is None):
        return f"{limit.text}: cannot be checked, since a report has no such figure"
    old = before or 0.0
    most = old * (1 + limit.most) if limit.is_share else old + limit.most if limit.is_change else limit.most
    if after <= most:
        return ""
    growth = f" ({after / old - 1:+.1%})" if old else ""
    return f"{limit.text}: {limit.figure} is {words(old)} before and {words(after)} after{growth}"


def _figure(report: Mapping[str, Any], figure: str) -> float | None:
    memory, work, estimate = (report[key] or {} for key in ("memory", "work", "estimate"))
    match figure:
        case "memory":
            return memory.get("peak")
        case "time":
            return estimate.get("seconds")
        case "sent":
            return report["bytes_per_step"]
        case "flops":
            return work.get("flops_compiled")
        case "trace" | "compile":
            return report.get(f"{figure}_seconds")  # an older report has no time of tracing
    return float(sum(one["bytes_per_step"] for one in report["collectives"] if one["kind"] == figure))


def _amount(text: str, figure: str, number: str, unit: str) -> float:
    if figure in _TIMES:
        if unit not in _SECONDS:
            raise ExplainError(f"{text!r}: a time needs its unit\n  fix: {figure}>{number}ms, or s, us")
        return float(number) * _SECONDS[unit]
    return float(number) if not unit else float(read_size(f"{number}{unit}"))
