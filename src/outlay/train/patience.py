"""Early stopping that survives a resume: how often a metric was evaluated since it was last better."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outlay.core.error_types import ProgramError
from outlay.core.suggest import did_you_mean
from outlay.train.multihost import text_of_first

EVALUATED = "evaluate."
"""What the names of metrics begin with that are measured of the state after a step."""


@dataclass(frozen=True)
class Patience:
    """Ends training when a metric has not improved for some evaluations, for `outlay.fit(..., patience=)`.

    A run that is continued remembers the evaluations before: they are read from its metrics file.

    Attributes:
        evaluations: how many without an improvement end training.
        metric: which metric, such as `evaluate.loss`, or one of the step's own.
        min_change: by how much it must be better to count.
        larger_is_better: for metrics such as an accuracy.

    Raises:
        ProgramError: there is no evaluation to wait for.

    Example:
        >>> counter = PatienceCounter(outlay.train.Patience(2, metric="loss"))
        >>> [counter.is_used_up_after({"loss": loss}) for loss in (1.0, 0.5, 0.6, 0.5)]
        [False, False, False, True]
    """

    evaluations: int
    metric: str = "evaluate.loss"
    min_change: float = 0.0
    larger_is_better: bool = False

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise ProgramError(f"evaluations={self.evaluations}: patience is for 1 evaluation or more")

    @property
    def is_of_evaluations(self) -> bool:
        """Whether the metric is one of those that only the steps have after which training is evaluated."""
        return self.metric.startswith(EVALUATED)


class PatienceCounter:
    """Counts evaluations without an improvement; a value that is no number is none.

    Args:
        patience: what to count.

    Attributes:
        patience: what is counted.
        is_used_up: whether there were as many as patience is for.
    """

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._best = math.inf
        self._since = 0
        self.is_used_up = False

    def is_used_up_after(self, metrics: Mapping[str, Any]) -> bool:
        """Take in the metrics of a step; whether training shall end.

        Raises:
            ProgramError: it was evaluated, and has no such metric, or the metric is not one number.
        """
        metric = self.patience.metric
        value = metrics.get(metric)
        is_due = not self.patience.is_of_evaluations or any(name.startswith(EVALUATED) for name in metrics)
        if value is None and is_due:
            names = [name for name in metrics if name not in ("step", "seconds")]
            raise ProgramError(f"patience waits for {metric!r}, which is no metric: {did_you_mean(metric, names)}")
        if isinstance(value, list):
            raise ProgramError(f"patience waits for {metric!r}, which is {len(value)} numbers and not one")
        if value is not None:
            self._add(float(value))
        return self.is_used_up

    def continue_after(self, earlier: Iterable[Mapping[str, Any]], step: int, *, from_file: bool) -> None:
        """Take in the evaluations of the steps before a run goes on; all processes get those of the first.

        Args:
            earlier: the metrics of these steps, in the first process.
            step: how many there were.
            from_file: whether there is a file that has them.

        Raises:
            ProgramError: there is none.
        """
        if step and not from_file:
            raise ProgramError(
                f"the run goes on after step {step}, and patience cannot know the evaluations before"
                "\n  fix: metrics_path=, the metrics file that the run has written so far"
            )
        metric = self.patience.metric
        text = text_of_first(lambda: json.dumps([each[metric] for each in earlier if metric in each])) if step else "[]"
        for value in json.loads(text):
            self._add(float(value))

    def _add(self, value: float) -> None:
        value = -value if self.patience.larger_is_better else value
        if value < self._best - self.patience.min_change:
            self._best, self._since = value, 0
        else:
            self._since += 1
        self.is_used_up = self._since >= self.patience.evaluations
