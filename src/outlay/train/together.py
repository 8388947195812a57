"""What the processes of a job do together while they train: wait for one another, and agree."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from outlay.core.errors import CheckpointError


def is_first() -> bool:
    """Whether this is the process that names and completes what all of them write, and speaks for them."""
    return jax.process_index() == 0


def wait_for_all(what: str) -> None:
    """Go on when every process has come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def as_first_finds(find: Callable[[], int]) -> int:
    """What `find` gives in the first process, in all of them: one may see a shared folder later than another.

    Raises:
        CheckpointError: it failed there; in the others too, so that none waits for the first.
    """
    if jax.process_count() == 1:
        return find()
    found = -1
    try:
        found = find() if is_first() else 0
    finally:
        found = int(multihost_utils.broadcast_one_to_all(np.int32(found)))
    if found < 0:
        raise CheckpointError("process 0 cannot use the checkpoints, and says why")
    return found
