"""Rank what was compiled, and say why each loser lost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlay.search.order import Screened
from outlay.search.price import Price
from outlay.search.selection import Considered, Verdict
from outlay.search.why import is_tie, why_slower, why_too_big


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate that was compiled.

    Attributes:
        screened: the candidate.
        price: what the compiler made of it; None where it made nothing.
        failure: why, in words.
        timed_out: whether it was stopped for taking too long.
        was_kept: whether the price was kept from an earlier search.
    """

    screened: Screened
    price: Price | None
    failure: str = ""
    timed_out: bool = False
    was_kept: bool = False


def ranked(outcomes: Sequence[Outcome]) -> list[Considered]:
    """The outcomes in order: what fits by time, the first of them chosen; what does not by memory; what failed.

    Where the estimates say nothing about which is fastest, the one that needs least memory is chosen.
    """
    priced = [(each, each.price) for each in outcomes if each.price is not None]
    fitting = sorted((pair for pair in priced if pair[1].fits), key=lambda pair: pair[1].seconds)
    too_big = sorted((pair for pair in priced if not pair[1].fits), key=lambda pair: pair[1].peak_bytes)
    found = []
    if fitting:
        fastest = fitting[0][1]
        first = min((pair for pair in fitting if is_tie(pair[1], fastest)), key=lambda pair: pair[1].peak_bytes)
        found.append(_considered(first[0], "chosen", "the fastest that fits"))
        found += [
            _considered(each, "slower", why_slower(price, first[1])) for each, price in fitting if each is not first[0]
        ]
    found += [_considered(each, "does not fit", why_too_big(price)) for each, price in too_big]
    failed = [each for each in outcomes if each.price is None]
    return found + [_considered(each, "timed out" if each.timed_out else "failed", each.failure) for each in failed]


def _considered(outcome: Outcome, verdict: Verdict, why: str) -> Considered:
    screened = outcome.screened
    return Considered(screened.candidate, verdict, why, outcome.price, screened.expected, outcome.was_kept)
