"""How many tokens a device needs so that computing takes as long as the exchanges over a mesh axis. Pure arithmetic.

What moves parameters or their gradients takes as long for few tokens as for many, and computing grows with them: from
some number of tokens on it can hide what is sent. What moves activations grows with the tokens as computing does, and
no number of them helps. Of an axis over which too much is moved that may be either, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outlay.core.one_line import OneLine

_WAITING = "communication"
_MATTERS = 0.01
"""The share of computing below which exchanges over an axis are not worth a word."""
_LIKE_FORWARD = 4
"""Up to how many times as long as forward exchanges of activations the others may take to be those of their gradients.

The backward pass sends about twice as much, or three times if it computes a part again.
"""


@dataclass(frozen=True)
class Threshold(OneLine):
    """When the exchanges over a mesh axis take longer than computing.

    Attributes:
        axes: the axis, or several joined by "+".
        fixed_seconds: the time of what moves parameters and gradients in a step, whatever the tokens.
        growing_seconds: the time of what moves activations, for the tokens that a device has.
        compute_seconds: the time of computing, for these tokens.
        num_now: the tokens, or samples, of a device: those of the batch by the number of devices.
        num_needed: from how many on computing takes as long; None if no number is enough.
    """

    axes: str
    fixed_seconds: float
    growing_seconds: float
    compute_seconds: float
    num_now: float
    num_needed: int | None

    def in_words(self, unit: str = "tokens") -> str:
        """Say it in a sentence.

        >>> Threshold("data", 0.2, 0.0, 1.0, 4096, 820).in_words()
        'over data exchanges take longer than computing below 820 tokens a device (4,096 now)'
        >>> Threshold("model", 0.0, 0.3, 1.0, 4096, 0).in_words()
        'over model exchanges grow with the tokens: 30% of computing, however many a device has'
        """
        share = self.growing_seconds / self.compute_seconds
        if self.num_needed is None:
            return (
                f"over {self.axes} exchanges that grow with the {unit} take {share:.2f} times as long as computing: "
                f"more {unit} a device do not help"
            )
        if not self.num_needed:
            return (
                f"over {self.axes} exchanges grow with the {unit}: {share:.0%} of computing, however many a device has"
            )
        return (
            f"over {self.axes} exchanges take longer than computing below {self.num_needed:,} {unit} a device "
            f"({self.num_now:,.0f} now)"
        )


@dataclass(frozen=True)
class Exchange(OneLine):
    """The time of exchanges over a mesh axis in a step.

    Attributes:
        axes: the axis, or several joined by "+".
        seconds: their time, if nothing overlaps.
        is_fixed: whether they move parameters or gradients, and not values that grow with the tokens; None if they may
            be either.
    """

    axes: str
    seconds: float
    is_fixed: bool | None


def thresholds(exchanges: Iterable[Exchange], parts: Mapping[str, float], num_now: float) -> tuple[Threshold, ...]:
    """Return the threshold of each mesh axis whose exchanges matter, in the order of the program.

    Args:
        exchanges: those of a step.
        parts: what the time of the step consists of, in seconds, as in `Estimate.parts`.
        num_now: the tokens, or samples, of a device.
    """
    compute = sum(seconds for name, seconds in parts.items() if name not in (_WAITING, "overhead"))
    if not compute or not num_now:
        return ()
    by_axes: dict[str, dict[bool | None, float]] = {}
    for one in exchanges:
        kinds = by_axes.setdefault(one.axes, dict.fromkeys((True, False, None), 0.0))
        kinds[one.is_fixed] += one.seconds
    sure = [
        (axes, kinds[True], kinds[False] + kinds[None]) for axes, kinds in by_axes.items() if _is_sure(kinds, compute)
    ]
    return tuple(
        Threshold(axes, fixed, growing, compute, num_now, needed(fixed, growing, compute, num_now))
        for axes, fixed, growing in sure
        if axes and fixed + growing > _MATTERS * compute
    )


def _is_sure(kinds: Mapping[bool | None, float], compute: float) -> bool:
    """Return whether what may be either matters little, or follows from what the forward pass exchanges."""
    return kinds[None] <= max(_MATTERS * compute, _LIKE_FORWARD * kinds[False])


def needed(fixed: float, growing: float, compute: float, num_now: float) -> int | None:
    """Return from how many tokens on computing takes as long as exchanges; None if no number is enough.

    Args:
        fixed: seconds of exchanges that do not grow with the tokens.
        growing: seconds of those that do, for the tokens that there are.
        compute: seconds of computing, for these.
        num_now: how many there are.

    >>> needed(0.2, 0.0, 1.0, 4096), needed(0.2, 0.5, 1.0, 4096), needed(0.0, 0.3, 1.0, 4096), needed(0.1, 1.0, 1.0, 8)
    (820, 1639, 0, None)
    """
    left = compute - growing
    if left <= 0:
        return None
    return 0 if fixed <= _MATTERS * growing else math.ceil(round(num_now * fixed / left, 6))
