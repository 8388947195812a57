"""Metrics over the steps of a run, thinned out to be drawn: extremes stay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from outlay.core.quantities import counted
from outlay.core.terminal_text import visible
from outlay.render.page import Block, Notes, Section
from outlay.render.pictures import Chart, ChartLine, Unit
from outlay.train.patience import EVALUATED

Points = Sequence[tuple[float, float | None]]

_MOST_POINTS = 2000  # of a metric; a screen has fewer columns
_MOST_METRICS = 60
_LONGEST_NAME = 120
_NOT_METRICS = ("step", "seconds")


class MetricCurves:
    """Each metric that is one number, over the steps.

    A long run keeps some of the points: of neighbours, the smallest and the largest. So a metric that is rare, such as
    an evaluation, keeps all of its own.

    Attributes:
        points: the points of each metric; None for a value that is not finite.
        left_out: the names of metrics beyond the number that a page has room for.
    """

    def __init__(self) -> None:
        self.points: dict[str, list[tuple[float, float | None]]] = {}
        self.left_out: set[str] = set()

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of the next step; lists, such as histograms, are none of them."""
        step = number_in(metrics, "step")
        if step is None:
            return
        for name, value in metrics.items():
            if name not in _NOT_METRICS and (value is None or _is_number(value)):
                self.add_point(name, step, number_in(metrics, name))

    def add_point(self, name: str, step: float, value: float | None) -> None:
        """Add a point of one metric."""
        if name not in self.points and len(self.points) >= _MOST_METRICS:
            self.left_out.add(name[:_LONGEST_NAME])
            return
        points = self.points.setdefault(name, [])
        points.append((step, value))
        if len(points) > 2 * _MOST_POINTS:
            self.points[name] = thinned(points, _MOST_POINTS)


def thinned(points: Points, most: int) -> list[tuple[float, float | None]]:
    """Return some of the points: of each group of neighbours the smallest and the largest, and the last of all.

    >>> thinned([(1, 5.0), (2, 1.0), (3, 9.0), (4, 4.0)], 2)
    [(2, 1.0), (3, 9.0), (4, 4.0)]
    """
    if len(points) <= most:
        return list(points)
    size = 2 * -(-len(points) // most)
    chosen = []
    for start in range(0, len(points), size):
        group = points[start : start + size]
        ends = {min(group, key=_height), max(group, key=_height)}
        chosen += sorted(ends, key=lambda point: point[0])
    return chosen if chosen[-1] == points[-1] else [*chosen, points[-1]]


def metric_sections(curves: MetricCurves) -> list[Section]:
    """Return a chart of each metric, the loss first; what is measured of held-out data too is in the same chart."""
    charts: dict[str, list[ChartLine]] = {}
    for name, points in curves.points.items():
        title = visible(name.removeprefix(EVALUATED)[:_LONGEST_NAME])
        charts.setdefault(title, []).append(ChartLine(visible(name[:_LONGEST_NAME]), thinned(points, _MOST_POINTS)))
    in_order = sorted(charts.items(), key=lambda item: item[0] != "loss")
    sections = [Section(title, _chart(title, lines)) for title, lines in in_order]
    if curves.left_out and sections:
        more: list[Block] = [Notes([f"{counted(len(curves.left_out), 'more metric')} in metrics.jsonl"], label="")]
        sections[-1] = Section(sections[-1].title, [*sections[-1].blocks, *more])
    return sections


def _chart(title: str, lines: Sequence[ChartLine]) -> list[Block]:
    unit: Unit = "percent" if title.rpartition(".")[2] == "accuracy" else ""
    chart = Chart(title, lines, "step", unit)
    bad = [
        f"{line.name} is not finite in {counted(sum(y is None for _, y in line.points), 'step')} of those drawn, "
        f"first in step {next(x for x, y in line.points if y is None):g}"
        for line in lines
        if any(y is None for _, y in line.points)
    ]
    return [chart, Notes(bad, is_warning=True)] if bad else [chart]


def number_in(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a line of metrics, which may come from anywhere; None for one that is not finite.

    >>> number_in({"loss": 2}, "loss"), number_in({"loss": 10**400}, "loss"), number_in({"loss": True}, "loss")
    (2.0, None, None)
    """
    value = metrics.get(name)
    if not _is_number(value):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _height(point: tuple[float, float | None]) -> float:
    return -math.inf if point[1] is None else point[1]
