"""What the processes of a job do together while they train: wait for one another, and agree."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable

import jax

from outlay.core.error_types import CheckpointError
from outlay.jobs.joined import gather_all, post, wait_for

# No collective waits here: the first one of CPU devices fails where a process is 30 s later than another, and process 0
# may check a checkpoint for longer.
_meetings = itertools.count()


def is_first() -> bool:
    """Whether this is the process that names and completes what all of them write, and speaks for them."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Go on when every process has come here, however long that takes.

    Args:
        what: what they wait for; the same in all processes, which come to the same waits in the same order.
    """
    if jax.process_count() > 1:
        key = f"together/{next(_meetings)}/{zlib.crc32(what.encode())}"
        gather_all(key, range(jax.process_count()), jax.process_index())


def as_first_finds(find: Callable[[], int]) -> int:
    """Return in all processes what `find` gives in the first: one may see a shared folder later than another.

    Raises:
        CheckpointError: it failed there; in the others too, so that none waits for the first.
    """
    return int(text_of_first(lambda: str(find())))


def text_of_first(find: Callable[[], str]) -> str:
    """Return in all processes the text that `find` gives in the first, which is not empty.

    Raises:
        CheckpointError: it failed there; in the others too, so that none waits for the first.
    """
    if jax.process_count() == 1:
        return find()
    key, found = f"found/{next(_meetings)}", ""
    if is_first():
        try:
            found = find()
        finally:
            post(key, found)
    else:
        found = wait_for(key) or ""
    if not found:
        raise CheckpointError("process 0 cannot use the checkpoints, and says why")
    return found
