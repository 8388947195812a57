"""Compare the arguments of all processes before they act, so that all raise the same error."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Sharding

from outlay.core.error_types import PlaceError, Problem

# Messages are short: one round of this size carries nearly all of them, and a second round the longer ones.
_FIRST_ROUND = 1024
_LENGTH = np.dtype("<u4")

NO_SUCH_PROCESS = "no such process"
"""The kind of problem of a number that is not a process of this job."""


def exchange(message: Any) -> list[Any]:
    """Return the messages of all processes, in their order; every process must call it.

    Args:
        message: JSON data; tuples come back as lists.

    Example:
        >>> exchange({"shape": (4, 2)})
        [{'shape': [4, 2]}]
    """
    text = json.dumps(message).encode()
    if jax.process_count() == 1:
        return [json.loads(text)]
    length = np.array([len(text)], _LENGTH).tobytes()
    rows = _all_rows(length + text, _FIRST_ROUND)
    starts = _LENGTH.itemsize
    lengths = [int(np.frombuffer(row[:starts], _LENGTH)[0]) for row in rows]
    if starts + max(lengths) > _FIRST_ROUND:
        rows = _all_rows(length + text, starts + max(lengths))
    return [json.loads(row[starts : starts + length]) for row, length in zip(rows, lengths, strict=True)]


def _all_rows(data: bytes, size: int) -> list[bytes]:
    own = np.frombuffer(data[:size].ljust(size, b"\0"), np.uint8)
    return [row.tobytes() for row in np.asarray(multihost_utils.process_allgather(own))]


def check_same(messages: Sequence[Any], what: str, fix: str) -> None:
    """Raise unless all processes sent the same message.

    Raises:
        PlaceError: with one problem per process that differs from process 0, and the message of process 0.
    """
    odd = [process for process, message in enumerate(messages) if message != messages[0]]
    if odd:
        problems = [Problem("differs", f"process {process}", str(messages[process]), fix) for process in (0, *odd)]
        raise PlaceError(f"{what} is not the same in all {len(messages)} processes", problems)


def process_problem(process: Any, name: str) -> Problem | None:
    """Return the problem of a number that is not a process of this job, or None."""
    count = jax.process_count()
    try:
        number = operator.index(process)
    except TypeError:
        number = -1
    if 0 <= number < count:
        return None
    here = "there is 1 process, number 0" if count == 1 else f"there are {count} processes, numbers 0 to {count - 1}"
    return Problem(NO_SUCH_PROCESS, f"{name}={process!r}", here, f"{name}=0, for example")


def check_all_present(sharding: Sharding, what: str) -> None:
    """Raise in every process if one of them has no device in a sharding and so cannot take part.

    Raises:
        PlaceError: with one problem per process that has no device there.
    """
    present = {device.process_index for device in sharding.device_set}
    problems = [
        Problem(
            "takes no part",
            f"process {process}",
            "none of its devices is in the sharding",
            "use a mesh over the devices of all processes",
        )
        for process in range(jax.process_count())
        if process not in present
    ]
    if problems:
        raise PlaceError(f"{what} needs devices of every process", problems)
