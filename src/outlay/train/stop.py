"""After which step a run stops that was asked to: the same in all processes, though each hears of it when it does."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from typing import Any, NoReturn

import jax

from outlay.core.error_types import ProgramError
from outlay.core.jax_compat import preemption_is_served
from outlay.jobs.joined import patience, post, posted, wait_for
from outlay.jobs.stop_request import Stopped, agree_on, exit_code, is_requested, listen, listening
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.together import is_first

_ASK_EVERY = 5.0  # seconds; a fraction of what SLURM gives between its signal and the time limit
_STOP = "stop"  # and with what exit code

_runs = itertools.count()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a run; says how far it came.

    Attributes:
        partial: what the run has measured until then: the metrics of its steps, as in `Fit`, or a recording.
        step: how many steps were finished.
        saved: the step of the last checkpoint; None where there is none.
    """

    def __init__(self, partial: Any, step: int, num_steps: int, where: str, saved: int | None) -> None:
        self.partial, self.step, self.saved = partial, step, saved
        super().__init__(f"stopped after step {step} of {num_steps}{where}{last_checkpoint_in_words(saved)}")


def end_on_request(step: int, num_steps: int, checkpoints: Checkpoints, *, say: bool) -> NoReturn:
    """End a program that was asked to, once its state is saved.

    Args:
        step: the step that it is after.
        num_steps: how many there would be in all.
        checkpoints: where it is saved.
        say: whether to say so on stderr.

    Raises:
        Stopped: always.
    """
    message = f"stopped on request after step {step} of {num_steps}, saved in {checkpoints.path}"
    stopped = Stopped(message, exit_code())
    if say:
        print(stopped, file=sys.stderr)
    raise stopped


def last_checkpoint_in_words(saved: int | None) -> str:
    """What the message of a run that ended early says at its end; empty where nothing was saved.

    Args:
        saved: the step of the last checkpoint; None where there is none.
    """
    return f"; the last checkpoint is of step {saved}" if saved is not None else ""


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
