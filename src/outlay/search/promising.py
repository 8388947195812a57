"""Look at a few candidates of each layout on each mesh where there are too many to look at all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from outlay.search.candidate import Candidate
from outlay.search.screening import Screened
from outlay.search.selection import Considered

MOST = 10_000
"""The number of candidates up to which the arithmetic looks at each: minutes of it."""
_LOOKS = 6
"""How many it looks at of a layout on a mesh before."""

Look = Callable[[Sequence[Candidate]], Sequence[Screened]]
"""Returns those candidates that the arithmetic does not rule out, with what it expects of them."""


def promising(
    candidates: Sequence[Candidate], look: Look, capacity: int, most: int = MOST
) -> tuple[Sequence[Candidate], list[Considered]]:
    """Return the candidates that are worth a look each, and those that are left out, with why.

    The candidates of a layout on a mesh differ in numbers of its pipeline, exchanges and options of the recipe, such as
    what is recomputed. A few of them, apart from each other, say what to expect of them all.

    Args:
        candidates: all of them.
        look: the arithmetic.
        capacity: the memory of a device in bytes.
        most: how many to return, but of one layout on one mesh all.
    """
    if len(candidates) <= most:
        return candidates, []
    families: dict[tuple[str, str], list[Candidate]] = {}
    for each in candidates:
        families.setdefault(_family(each), []).append(each)
    orders: dict[tuple[str, str], list[tuple[bool, float]]] = {}
    for one in look([each for family in families.values() for each in _spread(family)]):
        fits = one.expected.num_bytes <= capacity
        order = (not fits, one.expected.seconds_per_sample if fits else one.expected.num_bytes)
        orders.setdefault(_family(one.candidate), []).append(order)
    best = sorted(families, key=lambda family: min(orders.get(family, [(True, math.inf)])))
    ends = itertools.accumulate(len(families[family]) for family in best)
    taken = {family for place, (family, end) in enumerate(zip(best, ends, strict=True)) if end <= most or place == 0}
    why = "the few of this layout on this mesh that were looked at promise less than those of others"
    left_out = [Considered(each, "ruled out", why) for each in candidates if _family(each) not in taken]
    return [each for each in candidates if _family(each) in taken], left_out


def _family(candidate: Candidate) -> tuple[str, str]:
    return candidate.base_layout, candidate.mesh


def _spread(family: Sequence[Candidate]) -> list[Candidate]:
    """Return a few candidates from the first to the last, as far apart as they can be."""
    num = min(_LOOKS, len(family))
    return [family[place * (len(family) - 1) // max(1, num - 1)] for place in range(num)]
