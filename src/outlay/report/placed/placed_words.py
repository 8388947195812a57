"""Numbers of a placed program in words, for text and page alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlay.core.quantities import counted, format_bytes, format_seconds
from outlay.report.placed.placed_explanation import PlacedExplanation

_ALIKE = 0.005
"""Shares of the work that differ by less are the same."""


def headline(found: PlacedExplanation) -> str:
    """What was explained, and where it runs."""
    where = str(found.mesh)
    target = f", target {found.target}" if found.target and str(found.target) not in where else ""
    return f"{counted(len(found.parts), 'part')} on {where}{target}: {found.name}"


def bound(found: PlacedExplanation) -> str:
    """What can be gained at most, in a sentence."""
    return f"{largest(found)}; this one at most {found.gain:.1f}x"


def largest(found: PlacedExplanation) -> str:
    """The largest part, and what that means for every placement."""
    share = max(part.share for part in found.parts)
    names = [part.name for part in found.parts if part.share > share - _ALIKE]
    takes = f"{names[0]} takes" if len(names) == 1 else f"{' and '.join(names)} each take"
    return (
        f"{takes} {share:.0%} of the work, so no placement part by part can be faster than {found.best_gain:.1f}x one "
        "device (sum / max)"
    )


def cost(found: PlacedExplanation, amount: float) -> str:
    """An amount of work: a time, or bytes where the hardware is not known."""
    return format_seconds(amount) if found.target else format_bytes(amount)


def devices(ids: Sequence[Any]) -> str:
    """Device ids, listed."""
    return ", ".join(map(str, ids))


def rate(count: float) -> str:
    """Bytes a step, of which there may be less than one."""
    return format_bytes(count) if count >= 1 or not count else f"{count:.2f} B"
