"""Which steps of a run are recorded: all, windows of time, or what is around an event."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outlay.brain.module import BrainError

MS_PER_SECOND = 1000.0


@dataclass(frozen=True)
class Window:
    """A piece of simulated time.

    Attributes:
        start: its first moment in ms.
        end: in ms, not included.

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
        """A window as text: `FROM..TO` in ms; without TO, to the end of the run.

        Raises:
            BrainError: it is written otherwise, or holds no time.
        """
        start, dots, end = text.removesuffix("ms").partition("..")
        try:
            return cls(float(start or 0), float(end or math.inf) if dots else float("nan"))
        except ValueError as error:
            if isinstance(error, BrainError) and dots:
                raise
            raise BrainError(f"{text!r} is no window of time\n  fix: FROM..TO in ms, such as 100..200") from error


@dataclass(frozen=True)
class Trigger:
    """An event, and how much is recorded around it.

    Attributes:
        port: `MODULE:PORT`. Of spikes the event is about the mean rate of the neurons in Hz, of values their mean.
        above: the event lasts as long as the number is above this.
        around: how much is recorded before and after it, in ms.
        over: the number is that of so many last ms.

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
        """A trigger as text: `MODULE:PORT > NUMBER +- MS`; without the last part 50 ms.

        Raises:
            BrainError: it is written otherwise.
        """
        found = _TRIGGER.fullmatch(text.strip())
        if not found:
            raise BrainError(
                f"{text!r} is no trigger\n  fix: MODULE:PORT > RATE +- MS, such as 'A_ex:out_spikes > 80 +- 50'"
            )
        around = {} if found["around"] is None else {"around": float(found["around"])}
        return cls(found["port"], float(found["above"]), **around)


_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_TRIGGER = re.compile(
    rf"(?P<port>[^\s>]+:[^\s>]+)\s*>\s*(?P<above>-?{_NUMBER})\s*(?:Hz)?\s*(?:(?:±|\+-|\+/-)\s*(?P<around>{_NUMBER})\s*(?:ms)?)?"
)


@dataclass(frozen=True)
class Moments:
    """The steps of a run that are recorded.

    With windows, only steps in one of them; with triggers, only steps around an event; with both, either will do;
    with neither, all.

    Attributes:
        windows: pieces of simulated time.
        triggers: events.
    """

    windows: Sequence[Window] = ()
    triggers: Sequence[Trigger] = ()

    @classmethod
    def of(cls, windows: Sequence[tuple[float, float] | str], triggers: Sequence[str]) -> Moments:
        """From what a user writes.

        Args:
            windows: each as (from, to) in ms, or as text.
            triggers: as text.

        Raises:
            BrainError: one of them is written otherwise.
        """
        pieces = [Window.parse(window) if isinstance(window, str) else Window(*window) for window in windows]
        return cls(tuple(pieces), tuple(map(Trigger.parse, triggers)))

    @property
    def all(self) -> bool:
        """Whether every step is recorded."""
        return not self.windows and not self.triggers

    def in_windows(self, steps: np.ndarray, dt: float) -> np.ndarray:
        """Which of some steps are in a window, as booleans."""
        times = steps * dt
        return np.any([(times >= w.start) & (times < w.end) for w in self.windows] or [np.zeros(len(steps), bool)], 0)
