"""What training comes to: the state, and the metrics of its steps, which a notebook shows as curves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from outlay.core.quantities import counted, format_seconds
from outlay.render.page import Line, Page
from outlay.render.report import Report, fields_as_json
from outlay.train.metric_curves import MetricCurves, metric_sections
from outlay.train.metrics_file import metrics_in_words
from outlay.train.recording import Recording


@dataclass(frozen=True)
class Fit(Report):
    """The result of a training run; a notebook shows its curves.

    Attributes:
        state: the state after the last step.
        history: the metrics of every step, with `step`, counted from 1, and `seconds` since the start. A run of more
            than `MOST_REMEMBERED` steps keeps every second, fourth, ... step and the last. A run continued without its
            metrics file, and any process but the first, has only the steps after `start`. The metrics file has all.
        seconds: the duration of the steps, from dispatch to metrics, without compiling.
        num_samples: the number of samples in these steps.
        recording: the recorded leaves, and the steps after which they were recorded.
    """

    state: Any
    history: list[dict[str, Any]]
    seconds: float
    num_samples: int
    recording: Recording

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data: the metrics, and how long it took; `outlay.Checkpoints` saves the state."""
        return fields_as_json(self, "state", "recording")

    def _in_short(self) -> str:
        return f"{self._steps_in_words()}, {metrics_in_words(self.history[-1])}" if self.history else "no steps"

    def _steps_in_words(self) -> str:
        return f"{counted(self.history[-1]['step'], 'step')} in {format_seconds(self.seconds)}"

    def _page(self) -> Page:
        if not self.history:
            return Page("No steps", [])
        last = self.history[-1]
        rate = f"{self.num_samples / self.seconds:,.0f} samples a second" if self.seconds else ""
        curves = MetricCurves()
        for metrics in self.history:
            curves.add(metrics)
        ends = {"after the first": self.history[0], "after the last": last}
        return Page(
            title=f"Trained: {self._steps_in_words()}",
            headline=self._steps_in_words(),
            blocks=[
                Line(rate),
                *(Line(f"{when}: {metrics_in_words(metrics)}") for when, metrics in ends.items()),
                *(replace(section, medium="html") for section in metric_sections(curves)),
            ],
        )
