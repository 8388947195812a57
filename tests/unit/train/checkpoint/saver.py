"""Processes that save until they are killed, or until the disk is full."""

import itertools
import resource

from outlay.core.error_types import CheckpointError
from outlay.train.checkpoint.checkpoints import Checkpoints

NUM_NUMBERS = 2**20


def _state(step):
    import jax.numpy as jnp

    return {"step": jnp.int32(step), "numbers": jnp.full((NUM_NUMBERS,), step, jnp.float32)}


def save_for_ever(folder, first, finished):
    """Save one checkpoint after the other; `finished` holds the last step that was waited for."""
    checkpoints = Checkpoints(folder, keep=2)
    for step in itertools.count(first):
        checkpoints.save(step, _state(step))
        checkpoints.wait()
        finished.value = step


def save_to_a_full_disk(folder, report):
    """Save once; then leave no file more than a few bytes, save again, and once more when there is space."""
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, _state(1))
    checkpoints.wait()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (NUM_NUMBERS, limits[1]))
    try:
        checkpoints.save(2, _state(2))
        checkpoints.wait()
    except CheckpointError as error:
        report.put(str(error))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    report.put(checkpoints.steps())
    checkpoints.save(3, _state(3))
    checkpoints.wait()
    if any(entry.suffix == ".partial" for entry in folder.iterdir()):  # a writer of step 2 came back even later
        checkpoints.save(4, _state(4))
        checkpoints.wait()
    report.put((checkpoints.steps(), sorted(entry.name for entry in folder.iterdir())))
