"""`metrics.jsonl`: the metrics of each step, one JSON object a line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Self


class MetricsFile:
    """Writes metrics line by line, each on disk as soon as it is written: what a killed run leaves is whole lines.

    Args:
        path: the file, made anew.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, metrics: Mapping[str, float]) -> None:
        """Add one line; a value that is not finite is written as null."""
        self._file.write(json.dumps(finite(metrics)) + "\n")


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as JSON can hold them: it knows neither NaN nor infinity, so such a value becomes None.

    >>> finite({"loss": math.nan, "step": 3})
    {'loss': None, 'step': 3}
    """
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
