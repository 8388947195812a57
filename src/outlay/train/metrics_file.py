"""The metrics of each step: those that a run remembers, and `metrics.jsonl` with all, one JSON object a line."""

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
from outlay.core.output_file import whole_file
from outlay.core.quantities import counted

MOST_REMEMBERED = 10_000
"""Steps whose metrics a run remembers; the metrics file has all."""


class History:
    """The metrics of steps, evenly thinned out where there are many, and of the last.

    Args:
        metrics: of the steps so far.

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
        """Take in the metrics of the next step."""
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


class MetricsFile:
    """Writes metrics line by line, each on disk as soon as it is written: what a killed run leaves is whole lines.

    Args:
        path: the file.
        after: the step that the run continues after: lines up to it stay, later ones go. 0 makes the file anew.

    Attributes:
        path: the file.
        earlier: the metrics of the lines that stayed.

    Raises:
        CheckpointError: the file does not hold every step up to `after`.
        OutputError: there is a file that holds something other than metrics, or none can be written.
    """

    def __init__(self, path: Path, *, after: int = 0) -> None:
        self.path = path
        self.earlier = _read(path, after) if after else []
        _check_is_metrics(path)
        # Beside it and then in its place: a kill in between loses no line, and other processes may be reading it.
        try:
            with whole_file(path) as rewritten:
                self._file = rewritten.open("wb", buffering=0)
                try:
                    for metrics in self.earlier:
                        self.write(metrics)
                except BaseException:
                    self._file.close()
                    raise
        except OSError as error:
            raise self._unwritable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Add one line; a value that is not finite is written as null.

        Raises:
            OutputError: it cannot be written; the lines before it are there.
        """
        line = (json.dumps(finite(metrics)) + "\n").encode()
        before = self._file.tell()
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(before)
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> OutputError:
        if isinstance(error, OutputError):
            return error
        return OutputError(
            f"{self.path} cannot be written: {error.strerror}; the metrics before are in it"
            "\n  fix: make room or give permission, or another folder"
        )


def as_numbers(value: Any) -> Any:
    """A metric as Python has it: a float, or a list of them.

    >>> as_numbers(np.float32(0.5)), as_numbers(np.array([1, 2]))
    (0.5, [1.0, 2.0])
    """
    return np.asarray(value, np.float64).tolist()


def finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as JSON can hold them: it knows neither NaN nor infinity, so such a value becomes None.

    >>> finite({"loss": math.nan, "step": 3, "counts": [1.0, math.inf]})
    {'loss': None, 'step': 3, 'counts': [1.0, None]}
    """
    return {name: _finite(value) for name, value in metrics.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value if math.isfinite(value) else None


def _read_number(value: Any) -> Any:
    """What `_finite` wrote; whatever could not be written is NaN."""
    if isinstance(value, list):
        return [_read_number(each) for each in value]
    return math.nan if value is None else value


def _check_is_metrics(path: Path) -> None:
    """Raise where a file is there that is no metrics file, and would be replaced."""
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            first = file.readline(2**16)
        is_metrics = not first or "step" in json.loads(first)
    except OSError as error:
        raise OutputError(f"{path} cannot be read: {error.strerror}\n  fix: another file") from error
    except (ValueError, TypeError, RecursionError):
        is_metrics = False
    if not is_metrics:
        raise OutputError(f"{path} exists and holds no metrics of a run; nothing was written\n  fix: another file")


def _read(path: Path, num_steps: int) -> list[dict[str, Any]]:
    """The metrics of the first steps. What comes after them is not read: a killed run may end in half a line."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device might never end
            raise ValueError("it is no plain file")
        with path.open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in itertools.islice(file, num_steps)]
        steps = [metrics["step"] for metrics in rows]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be continued after step {num_steps}: {error}\n{_FIX}") from error
    if steps != list(range(1, num_steps + 1)):
        missing = sorted(set(range(1, num_steps + 1)) - set(steps))
        which = f"step {missing[0]} is missing" if missing else "its steps are out of order"
        raise CheckpointError(
            f"{path} cannot be continued after step {num_steps}: it begins with {counted(len(steps), 'line')}, "
            f"and {which}\n"
            f"{_FIX}"
        )
    return [{name: _read_number(value) for name, value in metrics.items()} for metrics in rows]


_FIX = "  fix: put the file of this run back, or begin the run anew"
