"""Decide which steps of a run are recorded, while it runs: all, time windows, or around triggers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from outlay.brain.module import MS_PER_S, BrainError
from outlay.brain.run.feed import below
from outlay.kit import Rows, RowTypes


@dataclass(frozen=True)
class Window:
    """A window of simulated time.

    Attributes:
        start: its start in ms.
        end: its end in ms, exclusive.

    Example:
        >>> Window.parse("100..250.5")
        Window(start=100.0, end=250.5)
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise BrainError(
                f"the window from {self.start:g} to {self.end:g} ms holds no time\n"
                "  fix: a start of 0 ms or later, and an end after it"
            )

    @classmethod
    def parse(cls, text: str) -> Window:
        """Parse a window: `FROM..TO` in ms; without TO, it extends to the end of the run.

        Raises:
            BrainError: the text is malformed, or the window is empty.
        """
        start, dots, end = text.removesuffix("ms").partition("..")
        try:
            # Without dots it is no window: NaN makes the constructor refuse it.
            return cls(float(start or 0), float(end or math.inf) if dots else float("nan"))
        except ValueError as error:
            if isinstance(error, BrainError) and dots:
                raise
            raise BrainError(f"{text!r} is not a window of time\n  fix: FROM..TO in ms, such as 100..200") from error


@dataclass(frozen=True)
class Trigger:
    """An event, and the time to record around it.

    Attributes:
        port: `MODULE:PORT`. The event is about the mean rate of its neurons in Hz, or about the mean of its values.
        above: the event lasts while this mean is above this threshold.
        around: the time to record before and after the event, in ms.
        over: the averaging time of the mean, in ms.

    Example:
        >>> Trigger.parse("A_ex:out_spikes > 80 Hz +- 50 ms")
        Trigger(port='A_ex:out_spikes', above=80.0, around=50.0, over=10.0)
    """

    port: str
    above: float
    around: float = 50.0
    over: float = 10.0

    def __post_init__(self) -> None:
        if not (self.around >= 0 and self.over > 0 and math.isfinite(self.around + self.over + self.above)):
            raise BrainError(
                f"a trigger cannot record {self.around:g} ms around the mean of {self.over:g} ms above {self.above:g}\n"
                "  fix: around of 0 ms or more, over of more than 0 ms, all of them finite"
            )

    @classmethod
    def parse(cls, text: str) -> Trigger:
        """Parse a trigger: `MODULE:PORT > NUMBER +- MS`; the last part defaults to 50 ms.

        Raises:
            BrainError: the text is malformed.
        """
        match = _TRIGGER.fullmatch(text.strip())
        if not match:
            raise BrainError(
                f"{text!r} is not a trigger\n  fix: MODULE:PORT > RATE +- MS, such as 'A_ex:out_spikes > 80 +- 50'"
            )
        around = {} if match["around"] is None else {"around": float(match["around"])}
        return cls(match["port"], float(match["above"]), **around)


_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_TRIGGER = re.compile(
    rf"(?P<port>[^\s>]+:[^\s>]+)\s*>\s*(?P<above>-?{_NUMBER})\s*(?:Hz)?\s*(?:(?:±|\+-|\+/-)\s*(?P<around>{_NUMBER})\s*(?:ms)?)?"
)


@dataclass(frozen=True)
class Moments:
    """The steps of a run that are recorded.

    Steps in any window and around any event are recorded; without windows and triggers, all steps are.

    Attributes:
        windows: windows of simulated time.
        triggers: events.
    """

    windows: Sequence[Window] = ()
    triggers: Sequence[Trigger] = ()

    @classmethod
    def of(cls, windows: Sequence[tuple[float, float] | str], triggers: Sequence[str]) -> Moments:
        """Parse windows and triggers.

        Args:
            windows: windows as (from, to) in ms, or as text.
            triggers: triggers as text.

        Raises:
            BrainError: one of them is malformed.
        """
        pieces = [Window.parse(window) if isinstance(window, str) else Window(*window) for window in windows]
        return cls(tuple(pieces), tuple(map(Trigger.parse, triggers)))

    @property
    def all(self) -> bool:
        """Whether every step is recorded."""
        return not self.windows and not self.triggers

    def in_windows(self, steps: np.ndarray, dt: float) -> np.ndarray:
        """Return which of some steps are in a window, as booleans."""
        times = steps * dt
        return np.any([(times >= w.start) & (times < w.end) for w in self.windows] or [np.zeros(len(steps), bool)], 0)


class Filter:
    """Select the recorded rows, in order, and release each as soon as it is certain whether it is recorded.

    Args:
        moments: the steps to record.
        dt: the duration of a step in ms.
    """

    def __init__(self, moments: Moments, dt: float) -> None:
        self._moments = moments
        self._dt = dt
        self._watches = [_Watch(trigger, dt) for trigger in moments.triggers]
        self._waiting: list[tuple[np.ndarray, Rows]] = []

    def __call__(
        self, first: int, ports: Rows, steps: np.ndarray, rows: Rows
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Add the results of a chunk of steps, and return the rows that are now certain.

        Args:
            first: the first step of the chunk.
            ports: the values of the triggers' ports in each step of the chunk.
            steps: the steps of the rows.
            rows: the rows, by address.
        """
        if self._moments.all:
            return steps, dict(rows)
        for watch in self._watches:
            watch.see(first, ports[watch.trigger.port])
        self._waiting.append((steps, rows))
        return self._release(min((watch.certain for watch in self._watches), default=None))

    def rest(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the rows whose events can no longer come."""
        return self._release(None)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the waiting rows and the state of the triggers."""
        arrays = {}
        for number, watch in enumerate(self._watches):
            arrays |= {f"{_WATCH}{number}/{name}": value for name, value in watch.to_arrays().items()}
        if self._waiting:
            steps, rows = self._joined()
            arrays |= {_WAITING: steps, **{f"{_WAITING}/{name}": row for name, row in rows.items()}}
        return arrays

    def continue_from(self, arrays: Mapping[str, np.ndarray], types: RowTypes) -> None:
        """Continue from the arrays of `to_arrays`; other arrays are ignored.

        Args:
            arrays: from a file.
            types: the shape and dtype of a row, by address.
        """
        for number, watch in enumerate(self._watches):
            watch.continue_from(below(f"{_WATCH}{number}/", arrays))
        if _WAITING in arrays:
            # NumPy files store bfloat16 as raw bytes without the dtype.
            rows = {name: arrays[f"{_WAITING}/{name}"].view(dtype) for name, (_, dtype) in types.items()}
            self._waiting = [(arrays[_WAITING], rows)]

    def _joined(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return all waiting rows, concatenated."""
        steps = np.concatenate([steps for steps, _ in self._waiting])
        names = self._waiting[0][1]
        return steps, {name: np.concatenate([rows[name] for _, rows in self._waiting]) for name in names}

    def _release(self, before: int | None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Release the recorded rows among those waiting whose step is before `before`; None for all steps."""
        if not self._waiting:
            return np.zeros(0, np.int64), {}
        steps, rows = self._joined()
        certain = np.ones(len(steps), bool) if before is None else steps < before
        self._waiting = [(steps[~certain], {name: row[~certain] for name, row in rows.items()})]
        recorded = certain & self._moments.in_windows(steps, self._dt)
        for watch in self._watches:
            recorded |= certain & watch.includes(steps)
        return steps[recorded], {name: row[recorded] for name, row in rows.items()}


_WATCH, _WAITING = "watch/", "waiting"


class _Watch:
    """The state of a trigger during a run.

    Attributes:
        trigger: the trigger.
        certain: all steps before this one are decided.
    """

    def __init__(self, trigger: Trigger, dt: float) -> None:
        self.trigger = trigger
        self.certain = 0
        self._around = round(trigger.around / dt)
        self._over = max(1, round(trigger.over / dt))
        self._per_second = MS_PER_S / dt
        self._last = np.zeros(0)
        self._events = np.zeros(0, np.int64)

    def see(self, first: int, written: np.ndarray) -> None:
        """Add the values of the port in the steps from `first` on."""
        flat = written.reshape(len(written), math.prod(written.shape[1:]))
        # Only ports of spikes are int8.
        is_spikes = flat.dtype == np.int8
        levels = (flat != 0).mean(1) * self._per_second if is_spikes else flat.astype(np.float64).mean(1)
        known = np.concatenate([self._last, levels])
        sums = np.concatenate([[0.0], np.cumsum(known)])
        ends = np.arange(len(self._last) + 1, len(known) + 1)
        means = (sums[ends] - sums[np.maximum(ends - self._over, 0)]) / np.minimum(ends, self._over)
        self._last = known[len(known) - min(self._over - 1, len(known)) :]
        now = first + np.flatnonzero(means > self.trigger.above)
        # The next event may still be near the steps after this one.
        self.certain = first + len(written) - self._around
        # Earlier events are near no row that is still to be decided.
        old_enough = self._events >= self.certain - 2 * self._around - len(written)
        self._events = np.concatenate([self._events[old_enough], now])

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the state of the trigger."""
        return {"certain": np.array(self.certain), "last": self._last, "events": self._events}

    def continue_from(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the arrays of `to_arrays`."""
        self.certain, self._last, self._events = int(arrays["certain"]), arrays["last"], arrays["events"]

    def includes(self, steps: np.ndarray) -> np.ndarray:
        """Return which of some steps are near an event, as booleans."""
        from_, to = np.searchsorted(self._events, [steps - self._around, steps + self._around + 1])
        return to > from_
