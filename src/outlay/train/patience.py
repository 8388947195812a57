"""The rule for early stopping: which metric is to improve, and for how long it may not."""

from __future__ import annotations

from dataclasses import dataclass

from outlay.core.error_types import ProgramError

EVALUATED = "evaluate."
"""The prefix of metrics that are evaluated on the state after a step."""


@dataclass(frozen=True)
class Patience:
    """End training when a metric has not improved for some evaluations; an argument of `outlay.fit`.

    A continued run reads the earlier evaluations from its metrics file.

    Attributes:
        evaluations: the number of evaluations without improvement that ends training.
        metric: the metric, such as `evaluate.loss`, or one of the step's own.
        min_change: the smallest improvement that counts.
        larger_is_better: True for metrics such as an accuracy.

    Raises:
        ProgramError: `evaluations` is less than 1.

    Example:
        >>> outlay.train.Patience(2, metric="evaluate.accuracy", larger_is_better=True).is_of_evaluations
        True
    """

    evaluations: int
    metric: str = "evaluate.loss"
    min_change: float = 0.0
    larger_is_better: bool = False

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise ProgramError(f"evaluations={self.evaluations}: patience needs at least 1 evaluation")

    @property
    def is_of_evaluations(self) -> bool:
        """Whether only evaluated steps have the metric."""
        return self.metric.startswith(EVALUATED)
