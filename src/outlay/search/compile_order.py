"""What to compile next: by the arithmetic, corrected by what the compiler has said so far. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from outlay.search.analytic_cost import Expectation
from outlay.search.candidate import Candidate, Price

_TURNS = 3
_CLEARLY_LESS = 0.8
"""Of memory: a share that the arithmetic can tell apart."""


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

    Those that are expected to fit come first, among them the fastest of each layout that has had no turn, then of
    each batch, then the fastest of all; where nothing is expected to fit, the smallest. Every third turn goes to the
    fastest that needs clearly less memory than all before it: such turns walk down the front of memory and time.

    Args:
        left: what there is to take from.
        taken: what was compiled already or is being compiled.
        priced: what the compiler said of some of those.
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
    """On every third turn, those that need clearly less memory than all that had a turn."""
    if len(taken) % _TURNS != _TURNS - 1:
        return []
    least = min(each.expected.num_bytes for each in taken)
    return [each for each in left if each.expected.num_bytes <= _CLEARLY_LESS * least]


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


def without_preset(priced: Sequence[tuple[Screened, Price]]) -> Screened | None:
    """The fastest that fits so far, compiled without the preset of options; None where nothing fits.

    A preset lets collectives run behind computation, and holds in memory what they bring: without it a step is slower
    and smaller. No arithmetic tells by how much.
    """
    fitting = [(each, price) for each, price in priced if price.fits]
    if not fitting:
        return None
    fastest, _ = min(fitting, key=lambda pair: pair[1].seconds / pair[0].expected.num_samples)
    return replace(fastest, candidate=replace(fastest.candidate, compiler_options="none"))
