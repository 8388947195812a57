"""A recording in memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from outlay.recipes.brain.recording.recording import Recording


class MemoryRecorder:
    """Collects rows in memory.

    Args:
        shapes: the shape and dtype of a row, by address.
        dt: the time of a step in ms.
    """

    def __init__(self, shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]], dt: float) -> None:
        self._dt = dt
        self._steps: list[np.ndarray] = [np.zeros(0, np.int64)]
        self._rows = {name: [np.zeros((0, *shape), dtype)] for name, (shape, dtype) in shapes.items()}

    def append(self, steps: np.ndarray, rows: Mapping[str, np.ndarray]) -> None:
        """Add one row of each address for each step."""
        if not len(steps):
            return
        self._steps.append(steps)
        for name, there in self._rows.items():
            there.append(rows[name])

    def recording(self) -> Recording:
        """What there is so far."""
        whole = {name: np.concatenate(rows) for name, rows in self._rows.items()}
        return Recording(np.concatenate(self._steps), self._dt, {n: (lambda a=a: a) for n, a in whole.items()})
