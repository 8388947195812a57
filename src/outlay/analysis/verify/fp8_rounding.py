"""How far products in 8 bits may take what a step computes from what it means, and how far they did.

A number of 8 bits is off by up to a sixteenth (e4m3) or an eighth (e5m2) of itself. In a product of many such numbers
these errors are of either sign: it is off by a few hundredths of its norm, while single entries, such as Adam's first
update of a weight with a small gradient, may have the other sign. So arrays are judged by their norms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from outlay.analysis.verify.runs import Leaves, Result

_SHARE_OF_NORM = 0.5
"""By how much of the norm of what a step did an array may be off, where the step multiplies in 8 bits."""
_OF_MOVED = 2.0
"""And by how much of what changes if the step's inputs are off by as much as 8 bits round them."""
_ZERO_BUT_FOR_ROUNDING = 1e-5


def within_fp8(
    got: np.ndarray, meant: np.ndarray, start: np.ndarray, rounded: float, moved: Iterable[np.ndarray]
) -> tuple[bool, float, str]:
    """Return whether an array is as near to what was meant as 8 bits allow.

    Args:
        got: what the program computed.
        meant: the same in float64.
        start: the array before the step; zero for gradients and outputs.
        rounded: how large the norm of the difference may be by what other dtypes round.
        moved: by how much one device is off if the step's inputs are, a few times; each is only asked for where half
            of the norm does not suffice. An update of fixed size, such as Adam's first, turns round where a gradient
            is smaller than its rounding: of few samples that may be every tenth entry, which is 0.6 of the norm.

    Returns:
        Whether it is, the norm of a difference that 8 bits allow, and why so much.

    >>> within_fp8(np.array([3.0, 4.1]), np.array([3.0, 4.0]), np.zeros(2), 0.0, [])[:2]
    (True, 2.5)
    """
    size, off = _norm(meant - start), _norm(got - meant)
    if (np.isnan(got) != np.isnan(meant)).any():
        return False, 0.0, _because(_SHARE_OF_NORM)
    # What cancels to zero leaves only rounding, which in 8 bits is large.
    if size < _ZERO_BUT_FOR_ROUNDING * _norm(got - start):
        return True, math.inf, "FP8: it is zero but for rounding"
    allowed = _SHARE_OF_NORM * size
    for each in moved:
        if off <= rounded + allowed:
            break
        allowed = max(allowed, _OF_MOVED * _norm(each))
    return off <= rounded + allowed, allowed, _because(allowed / size if size else 0.0)


def _because(share: float) -> str:
    return f"FP8: what products round to 8 bits may move an array by {share:.0%} of the norm of its update"


def cost_in_words(got: Result, right: Result, before: Leaves) -> str:
    """Say how far a program in FP8 is from one device that computes in the dtypes of the step as written.

    Args:
        got: a step of the program.
        right: the same step on one device.
        before: the state before it.
    """
    of_outputs = _shares(got.outputs, right.outputs, {})
    of_state = _shares(got.state, right.state, before)
    parts = [f"{path} is off by {share:.2%}" for path, share in list(of_outputs.items())[:3]]
    if of_state:
        path, most = max(of_state.items(), key=lambda one: one[1])
        usual = float(np.median([*of_state.values()]))
        parts.append(f"updates of the state are off by {usual:.1%} of their norm (median), at most {most:.1%} ({path})")
    return f"what FP8 costs in step 1, against the dtypes as written: {', '.join(parts)}"


def _shares(got: Mapping[str, Any], right: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, float]:
    """Return how far each array that the step changed is off, over the norm of its change."""
    shares = {}
    for path, leaf in right.items():
        if path in got and np.issubdtype(np.asarray(leaf, np.float64).dtype, np.floating):
            start = np.asarray(before.get(path, 0), np.float64)
            change = _norm(np.asarray(leaf, np.float64) - start)
            if change:
                shares[path] = _norm(np.asarray(got[path], np.float64) - np.asarray(leaf, np.float64)) / change
    return shares


def _norm(x: np.ndarray) -> float:
    return math.sqrt(np.square(np.abs(np.where(np.isfinite(x), x, 0.0))).sum())
