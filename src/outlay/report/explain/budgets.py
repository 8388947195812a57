"""Check a program against limits on communication and memory, for CI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import get_args

from outlay.analysis.attribution.collective_facts import rows
from outlay.analysis.hlo.hlo_collectives import CollectiveKind
from outlay.core.error_types import ExplainError
from outlay.core.quantities import format_bytes, how_often, listed
from outlay.core.suggest import did_you_mean
from outlay.report.explain.explanation import Explanation

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_MAX_NAMED = 3


def read_size(text: str) -> int:
    """Parse a size in bytes: `GiB` is binary, `GB` decimal.

    >>> read_size("10GiB"), read_size("1.5 kB"), read_size("512")
    (10737418240, 1500, 512)

    Raises:
        ExplainError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ExplainError(f"{text!r} is not a size\n  fix: write a number with a unit, such as 10GiB or 500MB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " "))


def read_kind(text: str) -> CollectiveKind:
    """Look up a kind of collective by name.

    Raises:
        ExplainError: no kind has this name.
    """
    kinds: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
    for kind in kinds:
        if kind == text:
            return kind
    raise ExplainError(f"there is no kind of collective {text!r}: {did_you_mean(text, kinds)}")


def broken_budgets(
    explanation: Explanation,
    *,
    max_bytes: int | None = None,
    max_memory: int | None = None,
    forbid: Sequence[CollectiveKind] = (),
) -> tuple[str, ...]:
    """Return a sentence for each limit that a program exceeds.

    An unknown figure counts as exceeded: incomplete totals, or memory for which the compiler reported nothing.

    Args:
        explanation: the program.
        max_bytes: the bytes that a device may send in a step.
        max_memory: the bytes that a device may need at its peak.
        forbid: kinds of collectives that must not occur.
    """
    return tuple(_broken(explanation, max_bytes, max_memory, forbid))


def _broken(
    explanation: Explanation, max_bytes: int | None, max_memory: int | None, forbid: Sequence[CollectiveKind]
) -> Iterator[str]:
    parts, memory, sent = explanation.by_parts, explanation.memory, explanation.bytes_per_step
    unknown = parts is None and (explanation.hlo is None or bool(explanation.hlo.skipped))
    peak = parts.peak if parts is not None else memory.peak if memory is not None else None
    if max_bytes is not None and sent > max_bytes:
        yield f"a device sends {format_bytes(sent)} a step, limit {format_bytes(max_bytes)}"
    # What could not be read might send anything.
    elif max_bytes is not None and unknown:
        yield "cannot check what a device sends: parts of the program could not be read"
    if max_memory is not None and peak is None:
        yield "cannot check the memory of a device: the compiler reported no memory figures"
    elif max_memory is not None and peak is not None and peak > max_memory:
        yield f"a device needs {format_bytes(peak)}, limit {format_bytes(max_memory)}"
    for kind in dict.fromkeys(forbid):
        if where := _where_it_runs(explanation, kind):
            yield f"{kind} is forbidden, but {where}"
        elif unknown:
            yield f"{kind} is forbidden, but cannot be checked: parts of the program could not be read"


_OF_ROWS: CollectiveKind = "all-gather"
"""The collective with which the devices of one part exchange its rows; between parts there are none."""


def _where_it_runs(explanation: Explanation, kind: CollectiveKind) -> str:
    """Say how often and where a program runs a kind of collective; empty if it does not."""
    if explanation.by_parts is not None:
        within = [one.part for one in explanation.by_parts.sent if one.is_within and kind == _OF_ROWS]
        return f"exchanges the rows of {', '.join(within)}" if within else ""
    lines = [row for row in rows(explanation.collectives) if row.kind == kind]
    where = listed([f"{row.what}{f' at {row.source}' if row.source else ''}" for row in lines], _MAX_NAMED)
    return f"runs {how_often(sum(row.total.num_runs for row in lines))}: {where}" if lines else ""
