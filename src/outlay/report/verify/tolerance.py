"""How far two ways to compute the same number may differ, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

_OF_LARGEST = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
_DIGITS = 8  # for other floats, and for what rounding of the inputs does: so many times the last digit
_PROVES_LITTLE = 0.01


@dataclass(frozen=True)
class Tolerance:
    """The largest difference that is rounding.

    Attributes:
        allowed: absolute, for every entry of the leaf.
        reason: where it comes from, in words.
        amplified: whether rounding alone moves the leaf so far that its being the same proves little.
    """

    allowed: float
    reason: str
    amplified: bool = False


EXACT = Tolerance(0.0, "exact: each part rounds the same wherever it runs")


def tolerance(dtype: np.dtype, change: Any, value: Any, nudges: Sequence[Any]) -> Tolerance:
    """The tolerance for one leaf.

    Args:
        dtype: of the leaf.
        change: what the step made of it in the reference: for state the update, otherwise the values.
        value: the reference's values.
        nudges: how far the values move when all that the step reads is moved by one unit in the last digit, once for
            each time that was tried.
    """
    if not jnp.issubdtype(dtype, jnp.inexact):
        return Tolerance(0.0, "exact: integers, booleans and keys do not round")
    eps = float(jnp.finfo(dtype).eps)
    share = _OF_LARGEST.get(dtype.name, _DIGITS * eps)
    largest = _largest(change)
    moved = max(map(_largest, nudges), default=0.0)
    amplified = moved > _PROVES_LITTLE * largest and moved > share * largest
    reason = f"{dtype.name}: sums in another order round differently, {share:g} of the largest entry"
    if amplified:
        reason += f"; rounding of the step's inputs alone moves it by {moved:.1e}"
    return Tolerance(share * largest + _DIGITS * (eps * _largest(value) / 2 + moved), reason, amplified)


def _largest(x: Any) -> float:
    sizes = np.abs(x)
    sizes = sizes[np.isfinite(sizes)]
    return float(sizes.max()) if sizes.size else 0.0
