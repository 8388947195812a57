"""What a Brain is fed when nobody says: slow waves, the same in every run."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from outlay.brain.port import Shape

PERIOD = 250.0
"""Of the first wave, in ms: several periods in a run of a second, and long beside a neuron's time constants."""
_RATIO = (1 + math.sqrt(5)) / 2  # no two waves ever come back to where they began together


def waves(shape: Shape, dt: float) -> Callable[[int], np.ndarray]:
    """A function from the step to numbers between -1 and 1, one sine a number, each of another period.

    Args:
        shape: of the input.
        dt: the time of a step in ms.

    Example:
        >>> drive = waves((4,), dt=1.0)
        >>> drive(0).shape, bool((drive(123) == waves((4,), dt=1.0)(123)).all())
        ((4,), True)
    """
    count = math.prod(shape)
    periods = PERIOD * (1 + (np.arange(count) * _RATIO) % 1)
    phases = 2 * np.pi * np.arange(count) / max(1, count)

    def value(step: int) -> np.ndarray:
        return np.sin(2 * np.pi * step * dt / periods + phases).reshape(shape)

    return value
