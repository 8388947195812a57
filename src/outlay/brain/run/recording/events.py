"""The steps around an event, as the run goes: what comes before it is kept until it is known whether it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from outlay.brain.run.recording.moments import MS_PER_SECOND, Moments, Trigger

Rows = Mapping[str, np.ndarray]


class Filter:
    """Passes on the recorded rows of the wanted steps, in order, as soon as it is certain that they are wanted.

    Args:
        moments: which steps are wanted.
        dt: the time of a step in ms.
    """

    def __init__(self, moments: Moments, dt: float) -> None:
        self._moments = moments
        self._dt = dt
        self._watches = [_Watch(trigger, dt) for trigger in moments.triggers]
        self._waiting: list[tuple[np.ndarray, Rows]] = []

    def __call__(
        self, first: int, ports: Rows, steps: np.ndarray, rows: Rows
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Take what a chunk of steps gave, and return what is now certain.

        Args:
            first: the first step of the chunk.
            ports: what the triggers' ports wrote in each step of it.
            steps: the steps of the recorded rows.
            rows: the recorded rows, by address.
        """
        if self._moments.all:
            return steps, dict(rows)
        for watch in self._watches:
            watch.see(first, ports[watch.trigger.port])
        self._waiting.append((steps, rows))
        return self._release(min((watch.certain for watch in self._watches), default=None))

    def rest(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """What was waiting for events that can no longer come."""
        return self._release(None)

    def _release(self, before: int | None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The wanted ones of the waiting rows whose step is before one; of all of them if None."""
        if not self._waiting:
            return np.zeros(0, np.int64), {}
        steps = np.concatenate([steps for steps, _ in self._waiting])
        rows = {name: np.concatenate([rows[name] for _, rows in self._waiting]) for name in self._waiting[0][1]}
        certain = np.ones(len(steps), bool) if before is None else steps < before
        self._waiting = [(steps[~certain], {name: row[~certain] for name, row in rows.items()})]
        wanted = certain & self._moments.in_windows(steps, self._dt)
        for watch in self._watches:
            wanted |= certain & watch.wanted(steps)
        return steps[wanted], {name: row[wanted] for name, row in rows.items()}


class _Watch:
    """One trigger over the steps of a run.

    Attributes:
        trigger: the trigger.
        certain: steps before this one are wanted or not, whatever comes.
    """

    def __init__(self, trigger: Trigger, dt: float) -> None:
        self.trigger = trigger
        self.certain = 0
        self._around = round(trigger.around / dt)
        self._over = max(1, round(trigger.over / dt))
        self._per_second = MS_PER_SECOND / dt
        self._last = np.zeros(0)
        self._events = np.zeros(0, np.int64)

    def see(self, first: int, written: np.ndarray) -> None:
        """What the port wrote in the steps from `first` on."""
        flat = written.reshape(len(written), -1)
        is_spikes = flat.dtype == np.int8
        levels = (flat != 0).mean(1) * self._per_second if is_spikes else flat.astype(np.float64).mean(1)
        known = np.concatenate([self._last, levels])
        sums = np.concatenate([[0.0], np.cumsum(known)])
        ends = np.arange(len(self._last) + 1, len(known) + 1)
        means = (sums[ends] - sums[np.maximum(ends - self._over, 0)]) / np.minimum(ends, self._over)
        self._last = known[len(known) - min(self._over - 1, len(known)) :]
        now = first + np.flatnonzero(means > self.trigger.above)
        self.certain = first + len(written) - self._around
        old_enough = self._events >= self.certain - 2 * self._around - len(written)
        self._events = np.concatenate([self._events[old_enough], now])

    def wanted(self, steps: np.ndarray) -> np.ndarray:
        """Which of some steps are near an event, as booleans."""
        from_, to = np.searchsorted(self._events, [steps - self._around, steps + self._around + 1])
        return to > from_


def ports_of(moments: Moments) -> Sequence[str]:
    """The ports that must be seen in every step."""
    return tuple(dict.fromkeys(trigger.port for trigger in moments.triggers))
