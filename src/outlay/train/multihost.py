"""What the processes of a job do together while a run goes on: wait for one another, agree, and stop after one step."""

from __future__ import annotations

import contextlib
import itertools
import time
import zlib
from collections.abc import Callable

import jax

from outlay.core.error_types import CheckpointError, ProgramError
from outlay.core.jax_compat import preemption_is_served
from outlay.jobs.joined import gather_all, patience, post, posted, wait_for
from outlay.jobs.stop_request import agree_on, exit_code, is_requested, listen, listening

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
    key, text = f"found/{next(_meetings)}", ""
    if is_first():
        try:
            text = find()
        finally:
            post(key, text)
    else:
        text = wait_for(key) or ""
    if not text:
        raise CheckpointError("process 0 cannot use the checkpoints, and says why")
    return text


_ASK_EVERY = 5.0  # seconds; a fraction of what SLURM gives between its signal and the time limit
_STOP = "stop"  # and with what exit code
_runs = itertools.count()


def on_request() -> contextlib.AbstractContextManager[None]:
    """Within this, SIGUSR1 and SIGTERM ask for a stop; the latter not where JAX's preemption service has taken it."""
    return contextlib.nullcontext() if preemption_is_served() else listening()


class StopTogether:
    """Asks after steps whether to stop.

    One process looks at its own request. Of several, process 0 decides at some steps for all, with word from those that
    were asked, and says which step is the next to decide at; the others wait for it there. It has no collective, and
    needs one message about every 5 s.

    Args:
        first: the step that the run begins after.
    """

    def __init__(self, first: int) -> None:
        listen()
        self._several = jax.process_count() > 1
        self._key = f"stop/{next(_runs)}"
        self._first, self._began = first, time.monotonic()
        self._next = first + 1
        self._has_told = False

    def after(self, step: int) -> bool:
        """Whether to stop after a step, counted from 1; to be asked after each of them.

        Raises:
            ProgramError: process 0 has not come to this step.
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
            raise ProgramError(f"process 0 has not come to step {step} within {patience():g} s of this one")
        if decision.startswith(_STOP):
            agree_on(int(decision.removeprefix(_STOP)))
            return True
        self._next = int(decision)
        return False

    def _decide(self, step: int) -> str:
        asked = posted(f"{self._key}/asked")  # where some were asked to end for good, and some for now: for good
        decision = max(asked) if asked else str(step + self._steps_until_next(step))
        post(f"{self._key}/{step}", decision)
        return decision

    def _steps_until_next(self, step: int) -> int:
        """No more than were taken so far: the first say little about how long they take."""
        taken = step - self._first
        a_second = taken / max(time.monotonic() - self._began, 1e-6)
        return max(1, min(taken, round(_ASK_EVERY * a_second)))
