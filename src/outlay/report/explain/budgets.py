"""Limits that a program must keep, for use in CI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import get_args

from outlay.analysis.attribution.collective_facts import rows
from outlay.analysis.hlo.hlo_collectives import CollectiveKind
from outlay.analysis.parts.part_facts import PlacedExplanation
from outlay.core.error_types import ExplainError
from outlay.core.quantities import format_bytes, how_often, listed
from outlay.core.suggest import did_you_mean
from outlay.report.explain.explanation import Explanation

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_MAX_NAMED = 3


def read_size(text: str) -> int:
    """Bytes of a size as people write it: binary units, or decimal ones without the i.

    >>> read_size("10GiB"), read_size("1.5 kB"), read_size("512")
    (10737418240, 1500, 512)

    Raises:
        ExplainError: it is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ExplainError(f"{text!r} is no size\n  fix: write a number with a unit, such as 10GiB or 500MB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " "))


def read_kind(text: str) -> CollectiveKind:
    """A kind of collective by name.

    Raises:
        ExplainError: there is none of that name.
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
    """Each limit that a program does not keep, in words.

    What is not known keeps no limit: totals that are incomplete, or memory that the compiler gave no figures of.

    Args:
        explanation: the program.
        max_bytes: that a device may send in a step.
        max_memory: that a device may need at its peak.
        forbid: kinds of collectives that there may be none of.
    """
    if explanation.by_parts is not None:
        return tuple(_broken_by_parts(explanation.by_parts, max_bytes, max_memory, forbid))
    return tuple(_broken(explanation, max_bytes, max_memory, forbid))


def _broken(
    explanation: Explanation, max_bytes: int | None, max_memory: int | None, forbid: Sequence[CollectiveKind]
) -> Iterator[str]:
    unknown = explanation.hlo is None or bool(explanation.hlo.skipped)
    if max_bytes is not None and explanation.bytes_per_step > max_bytes:
        yield f"a device sends {format_bytes(explanation.bytes_per_step)} a step, {format_bytes(max_bytes)} are allowed"
    elif max_bytes is not None and unknown:
        yield "what a device sends is not known for certain: the program could not be read whole"
    if max_memory is not None and explanation.memory is None:
        yield "the memory that a device needs is not known: there are no figures from the compiler"
    elif max_memory is not None and explanation.memory is not None and explanation.memory.peak > max_memory:
        yield f"a device needs {format_bytes(explanation.memory.peak)}, {format_bytes(max_memory)} are allowed"
    for kind in dict.fromkeys(forbid):
        lines = [row for row in rows(explanation.collectives) if row.kind == kind]
        if lines:
            where = listed([f"{row.what}{f' at {row.source}' if row.source else ''}" for row in lines], _MAX_NAMED)
            yield f"{kind} is forbidden, and runs {how_often(sum(row.total.num_runs for row in lines))}: {where}"
        elif unknown:
            yield f"{kind} is forbidden, and whether there is one is not known: the program could not be read whole"


_OF_ROWS: CollectiveKind = "all-gather"
"""How the devices of one part exchange its rows; between parts there are no collectives."""


def _broken_by_parts(
    explanation: PlacedExplanation, max_bytes: int | None, max_memory: int | None, forbid: Sequence[CollectiveKind]
) -> Iterator[str]:
    """Each limit that it does not keep, in words; the arguments are those of `broken_budgets`."""
    if max_bytes is not None and explanation.most_sent > max_bytes:
        yield f"a device sends {format_bytes(explanation.most_sent)} a step, {format_bytes(max_bytes)} are allowed"
    if max_memory is not None and explanation.peak is None:
        yield "the memory that a device needs is not known: there are no figures from the compiler"
    elif max_memory is not None and explanation.peak is not None and explanation.peak > max_memory:
        yield f"a device needs {format_bytes(explanation.peak)}, {format_bytes(max_memory)} are allowed"
    within = [one for one in explanation.sent if one.is_within]
    if _OF_ROWS in forbid and within:
        yield f"{_OF_ROWS} is forbidden, and exchanges rows of {', '.join(one.part for one in within)}"
