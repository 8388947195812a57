"""Did you mean: find the nearest of the names that exist."""

from __future__ import annotations

import difflib
import functools
import heapq
from collections.abc import Iterable, Sequence

MAX_LISTED = 12
"""Names listed when none is close: enough to see the style, few enough to read."""


MAX_COMPARED = 200
"""Names compared letter by letter, about 0.1 ms each; of more, those that share most pairs of letters are taken."""

TYPO = 0.9
"""Similarity (0 to 1) from which a name is taken for a typo, and the second-nearest name would only distract."""


def did_you_mean(name: str, known: Iterable[str], *, mark: str = "") -> str:
    """Return a sentence with the closest known names, or with the first few if none is close.

    Args:
        name: what was given.
        known: the names that there are.
        mark: what each name is written with, such as `--`: it makes no two names alike.

    >>> did_you_mean("modle", ["data", "model"])
    "did you mean 'model'?"
    >>> did_you_mean("x", ["data", "model"])
    "known: 'data', 'model'"
    """
    names = list(dict.fromkeys(known))
    first, num_known = names[:MAX_LISTED], len(names)
    if len(names) > MAX_COMPARED:
        names = heapq.nlargest(MAX_COMPARED, names, key=functools.partial(_shared_pairs, _pairs(name)))
    close = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    likeness = [difflib.SequenceMatcher(None, other, name).ratio() for other in close]
    if len(close) == 2 and likeness[0] >= TYPO and likeness[0] > likeness[1]:
        close = close[:1]
    if close:
        return "did you mean " + " or ".join(repr(mark + c) for c in close) + "?"
    more = f" and {num_known - MAX_LISTED} more" if num_known > MAX_LISTED else ""
    return "known: " + (", ".join(repr(mark + n) for n in first) or "none") + more


def or_renamed(edit: str, path: str, others: Sequence[str]) -> str:
    """Return an edit for a leaf that one side lacks; if the other side lacks some too, it may only have another name.

    >>> or_renamed("add it", "params.kernel", ["params.kernal"])
    "add it; did you mean 'params.kernal'?"
    """
    return f"{edit}; {did_you_mean(path, others)}" if others else edit


def _pairs(name: str) -> set[str]:
    """Return the pairs of neighbouring letters in a name."""
    return {name[i : i + 2] for i in range(len(name) - 1)}


def _shared_pairs(pairs: set[str], other: str) -> float:
    """Return the share of letter pairs that two names have in common (Jaccard index)."""
    other_pairs = _pairs(other)
    return len(pairs & other_pairs) / max(len(pairs | other_pairs), 1)
