"""Early stopping that survives a resume: count the evaluations since a metric last improved."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from outlay.core.error_types import ProgramError
from outlay.core.suggest import did_you_mean
from outlay.train.multihost import text_of_process_0
from outlay.train.patience import EVALUATED, Patience


class PatienceCounter:
    """Count the evaluations without improvement; NaN is not an improvement.

    Args:
        patience: the rule.

    Attributes:
        patience: the rule.
        is_used_up: whether there have been `patience.evaluations` without improvement.

    Example:
        >>> counter = PatienceCounter(outlay.train.Patience(2, metric="loss"))
        >>> [counter.is_used_up_after({"loss": loss}) for loss in (1.0, 0.5, 0.6, 0.5)]
        [False, False, False, True]
    """

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._best = math.inf
        self._since = 0
        self.is_used_up = False

    def is_used_up_after(self, metrics: Mapping[str, Any]) -> bool:
        """Add the metrics of a step, and return whether training should end.

        Raises:
            ProgramError: the step was evaluated but lacks the metric, or the metric is not a single number.
        """
        metric = self.patience.metric
        value = metrics.get(metric)
        is_due = not self.patience.is_of_evaluations or any(name.startswith(EVALUATED) for name in metrics)
        if value is None and is_due:
            names = [name for name in metrics if name not in ("step", "seconds")]
            raise ProgramError(f"patience watches {metric!r}, which is not a metric: {did_you_mean(metric, names)}")
        if isinstance(value, list):
            raise ProgramError(f"patience watches {metric!r}, which is {len(value)} numbers instead of one")
        if value is not None:
            self._add(float(value))
        return self.is_used_up

    def continue_after(self, earlier: Iterable[Mapping[str, Any]], step: int, *, from_file: bool) -> None:
        """Add the evaluations from before a run is continued; all processes use process 0's.

        Args:
            earlier: the metrics of the earlier steps, in the first process.
            step: the number of earlier steps.
            from_file: whether a metrics file has them.

        Raises:
            ProgramError: there are earlier steps but no metrics file.
        """
        if step and not from_file:
            raise ProgramError(
                f"the run continues after step {step}, but patience does not know the earlier evaluations"
                "\n  fix: pass metrics_path=, the metrics file of the run"
            )
        metric = self.patience.metric
        text = (
            text_of_process_0(lambda: json.dumps([each[metric] for each in earlier if metric in each]))
            if step
            else "[]"
        )
        for value in json.loads(text):
            self._add(float(value))

    def _add(self, value: float) -> None:
        value = -value if self.patience.larger_is_better else value
        if value < self._best - self.patience.min_change:  # which NaN never is
            self._best, self._since = value, 0
        else:
            self._since += 1
        self.is_used_up = self._since >= self.patience.evaluations
