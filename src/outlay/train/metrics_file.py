"""`metrics.jsonl`: the metrics of each step, one JSON object a line."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from outlay.core.errors import CheckpointError


class MetricsFile:
    """Writes metrics line by line, each on disk as soon as it is written: what a killed run leaves is whole lines.

    Args:
        path: the file.
        after: the step that the run continues after: lines up to it stay, later ones go. 0 makes the file anew.

    Attributes:
        kept: the metrics of the lines that stayed.

    Raises:
        CheckpointError: the file does not hold every step up to `after`.
    """

    def __init__(self, path: Path, *, after: int = 0) -> None:
        self.kept = _read(path, after) if after else []
        # Beside it and then in its place: a kill in between loses no line, and other processes may be reading it.
        rewritten = path.with_name(f"{path.name}.partial")
        self._file = rewritten.open("w", encoding="utf-8", buffering=1)
        for metrics in self.kept:
            self.write(metrics)
        rewritten.replace(path)

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


def _read(path: Path, num_steps: int) -> list[dict[str, float]]:
    """The metrics of the first steps. What comes after them is not read: a killed run may end in half a line."""
    try:
        with path.open(encoding="utf-8") as file:
            found = [json.loads(line) for line in itertools.islice(file, num_steps)]
        steps = [metrics["step"] for metrics in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be continued after step {num_steps}: {error}\n{_CURE}") from error
    if steps != list(range(1, num_steps + 1)):
        missing = sorted(set(range(1, num_steps + 1)) - set(steps))
        which = f"step {missing[0]} is missing" if missing else "its steps are out of order"
        raise CheckpointError(
            f"{path} cannot be continued after step {num_steps}: it begins with {len(steps)} line(s), and {which}\n"
            f"{_CURE}"
        )
    return [{name: math.nan if value is None else value for name, value in metrics.items()} for metrics in found]


_CURE = "  cure: put the file of this run back, or begin the run anew"
