"""Coordinate the processes of a run: wait for each other, agree on values, and stop after the same step."""

from __future__ import annotations

import contextlib
import itertools
import time
import zlib
from collections.abc import Callable

import jax

from outlay.core.error_types import CheckpointError, ProgramError
from outlay.core.jax_compat import preemption_is_served
from outlay.devices.mesh_info import is_first
from outlay.jobs.current_job import gather_all, patience, post, posted, wait_for
from outlay.jobs.stop_request import agree_on, exit_code, is_requested, listen, listening

# These waits are not collectives: the first gloo collective fails if a process is 30 s late, and process 0 may check a
# checkpoint for longer than that.
_meetings = itertools.count()


def wait_for_all(what: str) -> None:
    """Wait for every process to arrive, however long that takes.

    Args:
        what: the name of the wait; all processes must reach the same waits in the same order.
    """
    if jax.process_count() > 1:
        # With the name in the key, processes that wait for different things do not take each other for arrived.
        key = f"together/{next(_meetings)}/{zlib.crc32(what.encode())}"
        gather_all(key, range(jax.process_count()), jax.process_index())


def on_process_0(find: Callable[[], int]) -> int:
    """Return the first process's result of `find` in all processes: on a shared file system, some see a folder later.

    Raises:
        CheckpointError: it failed in the first process; all others raise too, so that none waits for it.
    """
    return int(text_of_process_0(lambda: str(find())))


def text_of_process_0(find: Callable[[], str]) -> str:
    """Return the first process's text, which must not be empty, in all processes.

    Raises:
        CheckpointError: it failed in the first process; all others raise too, so that none waits for it.
    """
    if jax.process_count() == 1:
        return find()
    key, text = f"found/{next(_meetings)}", ""
    if is_first():
        try:
            text = find()
        finally:
            post(key, text)
    else:
        text = wait_for(key) or ""
    if not text:
        raise CheckpointError("process 0 cannot use the checkpoints; its message says why")
    return text


_ASK_EVERY = 5.0  # seconds; a fraction of what SLURM gives between its signal and the time limit
_STOP = "stop"  # and with what exit code
_runs = itertools.count()


def on_request() -> contextlib.AbstractContextManager[None]:
    """Treat SIGUSR1 and SIGTERM as requests to stop; not SIGTERM if JAX's preemption service handles it."""
    return contextlib.nullcontext() if preemption_is_served() else listening()


class AgreedStop:
    """Decide after each step whether to stop, in agreement with all processes.

    A single process looks at its own request. With several, process 0 collects their requests, decides for all at some
    steps, and announces the next step to decide at; the others wait for it there. This takes no collective, and about
    one message every 5 s.

    Args:
        first: the step after which the run starts.
    """

    def __init__(self, first: int) -> None:
        listen()
        self._several = jax.process_count() > 1
        self._key = f"stop/{next(_runs)}"
        self._first, self._began = first, time.monotonic()
        self._next = first + 1
        self._has_told = False

    def after(self, step: int) -> bool:
        """Return whether to stop after a step, counted from 1; call it after every step.

        Raises:
            ProgramError: process 0 did not reach this step in time.
        """
        if not self._several:
            return is_requested()
        if is_requested() and not self._has_told:
            self._has_told = True
            post(f"{self._key}/asked/{jax.process_index()}", f"{_STOP} {exit_code()}")
        if step < self._next:
            return False
        decision = self._decide(step) if is_first() else wait_for(f"{self._key}/{step}", patience())
        if decision is None:
            raise ProgramError(f"process 0 did not reach step {step} within {patience():g} s of this process")
        if decision.startswith(_STOP):
            agree_on(int(decision.removeprefix(_STOP)))
            return True
        self._next = int(decision)
        return False

    def _decide(self, step: int) -> str:
        asked = posted(f"{self._key}/asked")
        # If some processes got SIGTERM and others SIGUSR1, the larger exit code wins: a SIGTERM must not be requeued.
        decision = max(asked) if asked else str(step + self._steps_until_next(step))
        post(f"{self._key}/{step}", decision)
        return decision

    def _steps_until_next(self, step: int) -> int:
        """Return at most as many as were taken so far: the first steps say little about the speed of later ones."""
        taken = step - self._first
        a_second = taken / max(time.monotonic() - self._began, 1e-6)
        return max(1, min(taken, round(_ASK_EVERY * a_second)))
