"""Choose what to compile next: by arithmetic, corrected by what the compiler has said so far. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from outlay.search.analytic_cost import Expectation
from outlay.search.candidate import Candidate, Price

_TURNS = 3
_CLEARLY_LESS = 0.8
"""The share of memory below which the arithmetic cannot tell candidates apart."""


@dataclass(frozen=True)
class Screened:
    """A candidate that the arithmetic does not rule out.

    Attributes:
        candidate: the candidate.
        expected: what the arithmetic expects of it.
    """

    candidate: Candidate
    expected: Expectation


def next_to_compile(
    left: Sequence[Screened], taken: Collection[Screened], priced: Sequence[tuple[Screened, Price]], capacity: int
) -> Screened:
    """Return the candidate to compile next.

    Candidates that are expected to fit come first: among them the fastest of each layout that has had no turn, then of
    each batch size, then the fastest of all. If none is expected to fit, the smallest comes first. Every third turn
    goes to the fastest that needs clearly less memory than all before it: these turns explore the trade of time for
    memory.

    Args:
        left: the candidates to choose from.
        taken: those that were compiled or are being compiled.
        priced: what the compiler said about some of those.
        capacity: the memory of a device.
    """
    factor = correction(priced)
    layouts = {each.candidate.base_layout for each in taken}
    batches = {each.expected.num_samples for each in taken}

    def order(each: Screened) -> tuple[bool, bool, bool, float]:
        expected = each.expected
        if expected.num_bytes * factor > capacity:
            return True, False, False, expected.num_bytes
        had_turns = each.candidate.base_layout in layouts, expected.num_samples in batches
        return False, *had_turns, expected.seconds_per_sample

    return min(_leaner(left, taken) or left, key=order)


def _leaner(left: Sequence[Screened], taken: Collection[Screened]) -> list[Screened]:
    """On every third turn, return those that need clearly less memory than all that had a turn."""
    if len(taken) % _TURNS != _TURNS - 1:
        return []
    least = min(each.expected.num_bytes for each in taken)
    return [each for each in left if each.expected.num_bytes <= _CLEARLY_LESS * least]


def in_order(
    left: Sequence[Screened], taken: Collection[Screened], priced: Sequence[tuple[Screened, Price]], capacity: int
) -> list[Screened]:
    """Return what would be compiled, in order, if all had a turn; the arguments are those of `next_to_compile`."""
    waiting, had_turns = list(left), list(taken)
    while waiting:
        had_turns.append(next_to_compile(waiting, had_turns, priced, capacity))
        waiting.remove(had_turns[-1])
    return had_turns[len(taken) :]


def correction(priced: Sequence[tuple[Screened, Price]]) -> float:
    """Return by what factor the compiler needs more memory than expected: the median so far."""
    return (
        statistics.median(price.peak_bytes / max(1, each.expected.num_bytes) for each, price in priced)
        if priced
        else 1.0
    )


def without_preset(priced: Sequence[tuple[Screened, Price]]) -> Screened | None:
    """Return the fastest candidate that fits so far, without the preset of options; None if nothing fits.

    A preset lets collectives overlap with computation, and keeps what they fetch in memory: without it a step is slower
    and smaller. No arithmetic tells by how much.
    """
    fitting = [(each, price) for each, price in priced if price.fits]
    if not fitting:
        return None
    fastest, _ = min(fitting, key=lambda pair: pair[1].seconds / pair[0].expected.num_samples)
    return replace(fastest, candidate=replace(fastest.candidate, compiler_options="none"))
