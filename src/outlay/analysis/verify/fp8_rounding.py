"""How far products in 8 bits may take what a step computes from what it means, and how far they did.

A number of 8 bits is off by up to a sixteenth (e4m3) or an eighth (e5m2) of itself. In a product of many such numbers
these errors are of either sign: it is off by a few hundredths of its norm, while single entries, such as Adam's first
update of a weight with a small gradient, may have the other sign. So arrays are judged by their norms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from outlay.analysis.verify.runs import Leaves, Result

SHARE_OF_NORM = 0.5
"""By how much of the norm of what a step did an array may be off, where the step multiplies in 8 bits."""
REASON = f"FP8: what products round to 8 bits may move an array by {SHARE_OF_NORM:.0%} of the norm of its update"
_ZERO_BUT_FOR_ROUNDING = 1e-5


def allowed_in_fp8(got: np.ndarray, meant: np.ndarray, start: np.ndarray) -> float:
    """Return how large the norm of the difference may be, without what other dtypes round.

    Args:
        got: what the program computed.
        meant: the same in float64.
        start: the array before the step; zero for gradients and outputs.

    >>> allowed_in_fp8(np.array([3.0, 4.1]), np.array([3.0, 4.0]), np.zeros(2))
    2.5
    """
    size = _norm(meant - start)
    # What cancels to zero leaves only rounding, which in 8 bits is large.
    return math.inf if size < _ZERO_BUT_FOR_ROUNDING * _norm(got - start) else SHARE_OF_NORM * size


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
