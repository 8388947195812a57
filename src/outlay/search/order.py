"""What to compile next: by the arithmetic, corrected by what the compiler has said so far. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from outlay.search.candidate import Candidate
from outlay.search.candidate_price import Price
from outlay.search.expect import Expectation


@dataclass(frozen=True)
class Screened:
    """A candidate that the arithmetic lets pass.

    Attributes:
        candidate: the candidate.
        expected: what the arithmetic expects of it.
    """

    candidate: Candidate
    expected: Expectation


def next_to_compile(
    left: Sequence[Screened], taken: Collection[Screened], priced: Sequence[tuple[Screened, Price]], capacity: int
) -> Screened:
    """The candidate to compile next.

    Those that are expected to fit come first, among them the fastest of each layout that has had no turn, then the
    fastest of all; where nothing is expected to fit, the smallest.

    Args:
        left: what there is to take from.
        taken: what was compiled already or is being compiled.
        priced: what the compiler said of some of those.
        capacity: the memory of a device.
    """
    factor = correction(priced)
    layouts = {each.candidate.layout for each in taken}

    def order(each: Screened) -> tuple[bool, bool, float]:
        if each.expected.num_bytes * factor > capacity:
            return True, False, each.expected.num_bytes
        return False, each.candidate.layout in layouts, each.expected.seconds

    return min(left, key=order)


def in_order(
    left: Sequence[Screened], taken: Collection[Screened], priced: Sequence[tuple[Screened, Price]], capacity: int
) -> list[Screened]:
    """What would be compiled if all had a turn, in this order; the arguments are those of `next_to_compile`."""
    waiting, had_turns = list(left), list(taken)
    while waiting:
        had_turns.append(next_to_compile(waiting, had_turns, priced, capacity))
        waiting.remove(had_turns[-1])
    return had_turns[len(taken) :]


def correction(priced: Sequence[tuple[Screened, Price]]) -> float:
    """How much more memory the compiler needs than was expected: the median over what it has said so far."""
    return (
        statistics.median(price.peak_bytes / max(1, each.expected.num_bytes) for each, price in priced)
        if priced
        else 1.0
    )
