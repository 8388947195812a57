"""Did you mean: the nearest of the names that exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_LISTED = 12
"""Names listed when none is close: enough to see the style, few enough to read."""


TYPO = 0.9
"""Likeness (0 to 1) from which a name is a slip of the finger, so that the next nearest one would only distract."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence naming the closest known names, or listing the first few when none is close.

    >>> did_you_mean("modle", ["data", "model"])
    "did you mean 'model'?"
    >>> did_you_mean("x", ["data", "model"])
    "known: 'data', 'model'"
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    likeness = [difflib.SequenceMatcher(None, other, name).ratio() for other in close]
    if len(close) == 2 and likeness[0] >= TYPO and likeness[0] > likeness[1]:
        close = close[:1]
    if close:
        return "did you mean " + " or ".join(repr(c) for c in close) + "?"
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return "known: " + (", ".join(repr(n) for n in names[:MAX_LISTED]) or "none") + more
