"""Name the mistake that a ratio of norms is typical of: many multiply by a number of devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

_NEAR = 0.02
_NOTHING = 1e-6


def name_ratio(ratio: float | None, axis_sizes: Mapping[str, int]) -> str:
    """Return the mistake that a ratio of norms is typical of, in words; empty if there is none.

    Args:
        ratio: the norm of what the program computed over the norm of what it should have.
        axis_sizes: the mesh's axes.

    >>> name_ratio(8.0, {"data": 4, "model": 2})
    '8.0x: summed where a mean was meant, or summed twice (over data, model)'
    >>> name_ratio(0.25, {"data": 4, "model": 2})
    '0.25x: averaged where a sum was meant (over data)'
    >>> name_ratio(0.0, {"data": 4}), name_ratio(1.1, {"data": 4})
    ('0.0x: dropped', '')
    """
    if ratio is None or not math.isfinite(ratio):
        return ""
    if ratio < _NOTHING:
        return "0.0x: dropped"
    products = _products(axis_sizes)
    for size, axes in products.items():
        if _is_near(ratio, size):
            return f"{size:.1f}x: summed where a mean was meant, or summed twice (over {axes})"
        if _is_near(ratio, 1 / size):
            return f"{1 / size:.4g}x: averaged where a sum was meant (over {axes})"
    for size, axes in products.items():
        if _is_near(ratio, size**2):
            return f"{size**2:.1f}x = {size} x {size}: summed twice where a mean was meant, or squared (over {axes})"
    return ""


def _products(axis_sizes: Mapping[str, int]) -> dict[int, str]:
    """Return every number of devices along some of the axes, few axes first."""
    split = {axis: size for axis, size in axis_sizes.items() if size > 1}
    products: dict[int, str] = {}
    for num in range(1, len(split) + 1):
        for axes in itertools.combinations(split, num):
            products.setdefault(math.prod(split[axis] for axis in axes), ", ".join(axes))
    return products


def _is_near(ratio: float, size: float) -> bool:
    return abs(ratio / size - 1) < _NEAR
