"""Metrics that are rows of numbers, such as the load of each expert, of the last step of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outlay.core.terminal_text import visible
from outlay.render.page import Section
from outlay.render.pictures import HeatMap, HeatRow
from outlay.train.metric_curves import number_in

_IN_A_ROW = 8
_MOST_METRICS = 6
_MOST_NUMBERS = 256  # as many as a run writes; a file may come from anywhere


def row_sections(metrics: Mapping[str, Any]) -> list[Section]:
    """Return a heat map of each metric that has several numbers.

    Args:
        metrics: the metrics of a step, which may come from anywhere.

    Example:
        >>> (section,) = row_sections({"step": 3, "loss": 1.0, "expert_load": [0.5, 0.25, 0.25]})
        >>> section.title, section.blocks[0].rows[0].cells
        ('expert_load in step 3', [('0.5', 1.0), ('0.25', 0.5), ('0.25', 0.5)])
    """
    step = number_in(metrics, "step")
    several = {name: value for name, value in metrics.items() if isinstance(value, list) and value}
    when = "" if step is None else f" in step {step:g}"
    return [
        Section(f"{visible(name[:120])}{when}", [_heat_map(values[:_MOST_NUMBERS])])
        for name, values in list(several.items())[:_MOST_METRICS]
    ]


def _heat_map(values: list[Any]) -> HeatMap:
    numbers = [number_in({"": value}, "") for value in values]
    finite = [abs(number) for number in numbers if number is not None]
    largest = max(finite, default=0.0) or 1.0
    starts = range(0, len(numbers), _IN_A_ROW)
    sums = [sum(number or 0.0 for number in numbers[start : start + _IN_A_ROW]) for start in starts]
    highest = max(map(abs, sums), default=0.0) or 1.0
    rows = []
    for start, total in zip(starts, sums, strict=True):
        few = numbers[start : start + _IN_A_ROW]
        cells = [("not finite" if one is None else f"{one:.3g}", abs(one or 0.0) / largest) for one in few]
        filled = [*cells, *[("", 0.0)] * (min(_IN_A_ROW, len(numbers)) - len(cells))]
        rows.append(HeatRow(str(start), filled, f"{total:.3g}", abs(total) / highest))
    return HeatMap("from", [f"+{column}" for column in range(min(_IN_A_ROW, len(numbers)))], rows)
