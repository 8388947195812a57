"""Keep the metrics of a run: a bounded history in memory, and all steps in `metrics.jsonl`, one JSON object a line."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from outlay.core.error_types import CheckpointError, OutputError
from outlay.core.one_line import OneLine
from outlay.core.output_file import open_plain, raising, whole_file
from outlay.core.quantities import counted

MOST_REMEMBERED = 10_000
"""The most steps whose metrics stay in memory; the metrics file has all."""


class History:
    """The metrics of a run's steps, evenly thinned out if there are many; the last step always stays.

    Args:
        metrics: the metrics of the steps so far.

    Attributes:
        last: the metrics of the last step; None before the first.
    """

    def __init__(self, metrics: Iterable[dict[str, float]] = ()) -> None:
        self._remembered: list[dict[str, float]] = []
        self._every = 1
        self._num = 0
        self.last: dict[str, float] | None = None
        for each in metrics:
            self.add(each)

    def add(self, metrics: dict[str, float]) -> None:
        """Add the metrics of the next step."""
        self.last = metrics
        if self._num % self._every == 0:
            self._remembered.append(metrics)
            if len(self._remembered) > MOST_REMEMBERED:
                self._remembered = self._remembered[::2]
                self._every *= 2
        self._num += 1

    def __iter__(self) -> Iterator[dict[str, float]]:
        ends_with_last = not self._remembered or self._remembered[-1] is self.last
        return iter(self._remembered if ends_with_last or self.last is None else [*self._remembered, self.last])


class MetricsFile(OneLine):
    """Write metrics line by line, unbuffered: a killed run leaves only whole lines.

    Args:
        path: the file.
        after: the step after which the run continues: earlier lines stay, later ones are dropped. 0 starts a new file.

    Attributes:
        path: the file.
        earlier: the metrics of the lines that stayed.

    Raises:
        CheckpointError: the file lacks a step up to `after`.
        OutputError: the file exists and has other content, or cannot be written.
    """

    def __init__(self, path: Path, *, after: int = 0) -> None:
        self.path = path
        self.earlier = _read(path, after) if after else []
        _check_is_metrics(path)
        # Write a new file and rename it: a kill in between loses no line, and others may be reading the old file.
        with raising(self._unwritable), whole_file(path) as rewritten:
            self._file = rewritten.open("wb", buffering=0)
            try:
                for metrics in self.earlier:
                    self.write(metrics)
            except BaseException:
                self._file.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Append a line; values that are not finite are written as null.

        Raises:
            OutputError: the line cannot be written; the lines before it are intact.
        """
        line = (json.dumps(finite(metrics)) + "\n").encode()
        before = self._file.tell()
        with raising(self._unwritable):
            try:
                if self._file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(before)
                raise

    def _in_short(self) -> str:
        return str(self.path)

    def _unwritable(self, why: str) -> OutputError:
        return OutputError(
            f"{self.path} cannot be written: {why}; it has the metrics up to here"
            "\n  fix: free space or fix the permissions, or use another folder"
        )


def as_numbers(value: Any) -> Any:
    """Convert a metric to a Python float, or a list of floats.

    >>> as_numbers(np.float32(0.5)), as_numbers(np.array([1, 2]))
    (0.5, [1.0, 2.0])
    """
    return np.asarray(value, np.float64).tolist()


def metrics_in_words(metrics: Mapping[str, Any], *, between: str = ", ") -> str:
    """Write the numbers of a step or an evaluation; a metric with several numbers is left to the metrics file.

    >>> metrics_in_words({"step": 3, "loss": 0.5, "accuracy": 0.975, "evaluate.accuracy": 0.96, "counts": [1.0]})
    'loss 0.5000, accuracy 97.50%, evaluate.accuracy 96.00%'
    """
    return between.join(
        f"{name} {value:.2%}" if name.rpartition(".")[2] == "accuracy" else f"{name} {value:.4f}"
        for name, value in metrics.items()
        if name not in ("step", "seconds") and not isinstance(value, list)
    )


def finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinity, which JSON does not have, by None.

    >>> finite({"loss": math.nan, "step": 3, "counts": [1.0, math.inf]})
    {'loss': None, 'step': 3, 'counts': [1.0, None]}
    """
    return {name: _finite(value) for name, value in metrics.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value if math.isfinite(value) else None


def _read_number(value: Any) -> Any:
    """Read what `_finite` wrote; None becomes NaN."""
    if isinstance(value, list):
        return [_read_number(each) for each in value]
    return math.nan if value is None else value


def _check_is_metrics(path: Path) -> None:
    """Raise if the file exists and is not a metrics file, so that it would be overwritten."""
    if not path.is_file():
        return
    try:
        with open_plain(path) as file:
            first = file.readline(2**16)
        is_metrics = not first or "step" in json.loads(first)
    except OSError as error:
        raise OutputError(f"{path} cannot be read: {error.strerror}\n  fix: use another file") from error
    except (ValueError, TypeError, RecursionError):
        is_metrics = False
    if not is_metrics:
        raise OutputError(f"{path} exists and is not a metrics file; nothing was written\n  fix: use another file")


def _read(path: Path, num_steps: int) -> list[dict[str, Any]]:
    """Read the metrics of the first steps. The rest is not read: a killed run may end in half a line."""
    try:
        with open_plain(path) as file:  # a run folder may come from anywhere
            rows = [json.loads(line) for line in itertools.islice(file, num_steps)]
        steps = [metrics["step"] for metrics in rows]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be continued after step {num_steps}: {error}\n{_FIX}") from error
    if steps != list(range(1, num_steps + 1)):
        missing = sorted(set(range(1, num_steps + 1)) - set(steps))
        which = f"step {missing[0]} is missing" if missing else "its steps are out of order"
        raise CheckpointError(
            f"{path} cannot be continued after step {num_steps}: it has {counted(len(steps), 'line')}, "
            f"and {which}\n"
            f"{_FIX}"
        )
    return [{name: _read_number(value) for name, value in metrics.items()} for metrics in rows]


_FIX = "  fix: restore the file of this run, or start a new run"
