"""The loop of every run: bounded calls in flight, checkpoints, and a clean stop on request."""

from __future__ import annotations

import abc
import collections
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jax
import numpy as np

from outlay.core.error_types import OutputError
from outlay.core.one_line import OneLine
from outlay.jobs.heartbeat import beat
from outlay.jobs.job_folder import AFTER_THE_LAST
from outlay.jobs.stop_request import Stopped, exit_code
from outlay.program.program import Program
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.multihost import on_request
from outlay.train.progress import Progress
from outlay.train.run_times import COMPILE, EVALUATE, INPUT, SAVE, STEPS, current_times
from outlay.train.saving import Saving


class StepLoop(OneLine, abc.ABC):
    """Run the steps of a run, one or many per call; subclasses define the kind of run.

    Args:
        program: the program.
        num_steps: the total number of steps.
        step: the step after which to continue.
        state: the state after it, which is donated.
        saving: saves the run, and ends it early on request.

    Attributes:
        step: the number of finished steps, whose results are recorded.
        total_seconds: the seconds of all steps, without compiling; set when the run has ended.
        stop_requested: set it to end the run before its last step.
        times: adds up where the time goes.
        max_in_flight: the number of calls in flight. Two, so that the devices never wait for Python. Without a bound,
            host memory fills with waiting batches, the progress shown runs far ahead of the devices, and simulated
            devices can starve each other of threads (decision 6).
    """

    max_in_flight = 2

    def __init__(self, program: Program, num_steps: int, *, step: int, state: Any, saving: Saving | None) -> None:
        self.program, self.num_steps, self.step, self.state = program, num_steps, step, state
        self.saving = saving
        self.stop_requested = False
        self.times = current_times()
        self._in_flight: collections.deque[tuple[int, int, Any]] = collections.deque()

    @abc.abstractmethod
    def begin(self, stack: contextlib.ExitStack) -> float:
        """Compile everything and initialize; returns the seconds of the earlier steps of a continued run.

        Args:
            stack: contexts to leave when the run ends.
        """

    @abc.abstractmethod
    def call(self, start: int, stop: int) -> Any:
        """Dispatch the steps from `start` up to `stop`, and return their future results."""

    @abc.abstractmethod
    def fetch(self, results: Any) -> Any:
        """Fetch the results of a call to the host, after waiting for them."""

    @abc.abstractmethod
    def record(self, start: int, stop: int, fetched: Any) -> str:
        """Record the results of the steps, and return a summary for the progress display."""

    @abc.abstractmethod
    def partial(self) -> tuple[Any, str]:
        """Return the results so far, and their location as the end of a message."""

    def next_stop(self, start: int) -> int:
        """Return the end of the call that starts at a step."""
        return start + 1

    def is_evaluated(self, stop: int, *, is_last: bool) -> bool:
        """Return whether to evaluate the state after a call."""
        return False

    def evaluate(self, results: Any) -> Any:
        """Evaluate the state, and add the results to the latest call's."""
        return results

    def collected(self) -> Mapping[str, np.ndarray]:
        """Return what to save with the state."""
        return {}

    def outputs(self, results: Any) -> Any:
        """Return the arrays of a call's results, by which it is seen whether the devices are still at work."""
        return results

    def count_input(self, began: float) -> None:
        """Count the time since then to reading input, unless the devices were at work all the while.

        Args:
            began: when reading began, as `time.perf_counter` has it.
        """
        in_flight: list[Any] = jax.tree.leaves([self.outputs(results) for _, _, results in self._in_flight])
        if all(leaf.is_ready() for leaf in in_flight if hasattr(leaf, "is_ready")):
            self.times.move(INPUT, time.perf_counter() - began)

    def can_fetch(self, results: Any) -> bool:
        """Return whether results can be fetched after a failure: other processes may never finish their part."""
        return jax.process_count() == 1

    @property
    def seconds(self) -> float:
        """The duration of the steps so far, without compiling."""
        return time.perf_counter() - self._began

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield the remaining calls as (first step, step after the last)."""
        start = self.step
        while start < self.num_steps:
            stop = min(self.next_stop(start), self.num_steps)
            if self.saving:
                stop = min(stop, self.saving.next_due(start))
            yield start, stop
            start = stop

    def run(self, progress: Progress | None) -> None:
        """Run the steps.

        Args:
            progress: the progress display; None to show nothing.

        Raises:
            Interrupted: on Ctrl-C.
            Stopped: a `SystemExit`, after a request to stop.
            OutputError: results cannot be written.
        """
        with contextlib.ExitStack() as stack:
            self._progress = stack.enter_context(progress) if progress else None
            if self.saving:
                stack.enter_context(on_request())
                self.saving.begin(self.step)
            beat(None, "compiling", self.num_steps)
            self._began = time.perf_counter()
            self.times.begin(self.step, self.num_steps)
            with self.times.spending(COMPILE):
                seconds = self.begin(stack)
            self._began = time.perf_counter() - seconds
            beat(None, f"step {self.step + 1}")
            try:
                with self.times.spending(STEPS):
                    is_stopped = self._take_steps()
                self.total_seconds = self.seconds
            except KeyboardInterrupt as interrupt:
                partial, where = self.partial()
                raise Interrupted(partial, self.step, self.num_steps, where, self.last_saved()) from interrupt
            except OutputError as error:
                raise self._stopped_by(error) from error
            except Exception:
                self._finish_what_can_be()
                raise
            finally:
                if self.saving:
                    self.saving.checkpoints.close()
        if self.saving and is_stopped:
            end_on_request(self.step, self.num_steps, self.saving.checkpoints, say=progress is not None)

    def finish(self, most_left: int) -> None:
        """Record the results of the oldest calls until at most `most_left` are in flight."""
        while len(self._in_flight) > most_left:
            start, stop, results = self._in_flight.popleft()
            try:
                fetched = self.fetch(results)
                self.step = stop
                beat(stop, f"step {stop + 1}" if stop < self.num_steps else AFTER_THE_LAST)
                facts = self.record(start, stop, fetched)
            except BaseException:
                self._in_flight.clear()  # otherwise later steps would be recorded without this one
                raise
            self.times.finished(stop)
            if self._progress:
                self._progress.show(stop, self.seconds, facts)

    def last_saved(self) -> int | None:
        """Return the step of the last checkpoint; None if there is none."""
        return self.saving.checkpoints.last_saved() if self.saving else None

    def _in_short(self) -> str:
        return f"at step {self.step} of {self.num_steps}"

    def _take_steps(self) -> bool:
        """Run and save the remaining steps; returns whether a stop was requested before the end."""
        is_stopped = False
        for start, stop in self.spans():
            if self.saving:
                self.saving.checkpoints.raise_if_failed()
            self._in_flight.append((start, stop, self.call(start, stop)))
            # Record as soon as the next call has started, so that `on_step` ends training one step later, not two
            # (decision 63).
            self.finish(self.max_in_flight - 1)
            is_last = self._evaluate(stop)
            if self.saving:
                is_stopped = not is_last and self.saving.is_asked_to_stop(stop)
                if is_stopped or self.saving.is_due(stop, is_last=is_last):
                    self.finish(0)  # the metrics of a step must be on disk before a checkpoint after it exists
                    beat(None, "saving")
                    with self.times.spending(SAVE):
                        self.saving.save(stop, self.program, self.state, self.collected())
            if is_stopped or is_last:
                break
        self.finish(0)
        if self.saving:
            with self.times.spending(SAVE):
                self.saving.checkpoints.wait()
        return is_stopped

    def _evaluate(self, stop: int) -> bool:
        """Evaluate the state after a call if that is due; returns whether the call is the last."""
        is_last = stop == self.num_steps or self.stop_requested
        if self.is_evaluated(stop, is_last=is_last):
            beat(None, "evaluating")
            start, stop, results = self._in_flight[0]
            with self.times.spending(EVALUATE):
                self._in_flight[0] = start, stop, self.evaluate(results)
            self.finish(0)
        return is_last or self.stop_requested

    def _finish_what_can_be(self) -> None:
        """Record the earlier results after a failure, without waiting for other processes."""
        with contextlib.suppress(Exception):
            while self._in_flight and self.can_fetch(self._in_flight[0][2]):
                self.finish(len(self._in_flight) - 1)

    def _stopped_by(self, error: OutputError) -> OutputError:
        headline, _, fix = str(error).partition("\n")
        saved = last_checkpoint_in_words(self.last_saved())
        return OutputError(f"{headline}; the run stopped after step {self.step} of {self.num_steps}{saved}\n{fix}")


class Interrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during a run.

    Attributes:
        partial: the results so far: the metrics of the steps, as in `Fit`, or a recording.
        step: the number of finished steps.
        saved: the step of the last checkpoint; None if there is none.
    """

    def __init__(self, partial: Any, step: int, num_steps: int, where: str, saved: int | None) -> None:
        self.partial, self.step, self.saved = partial, step, saved
        super().__init__(f"stopped after step {step} of {num_steps}{where}{last_checkpoint_in_words(saved)}")


def end_on_request(step: int, num_steps: int, checkpoints: Checkpoints, *, say: bool) -> NoReturn:
    """End a program on request, after its state was saved.

    Args:
        step: the number of finished steps.
        num_steps: the total number of steps.
        checkpoints: the checkpoints of the run.
        say: whether to print a message on stderr.

    Raises:
        Stopped: always.
    """
    message = f"stopped on request after step {step} of {num_steps}, saved in {checkpoints.path}"
    stopped = Stopped(message, exit_code())
    if say:
        print(stopped, file=sys.stderr)
    raise stopped


def last_checkpoint_in_words(saved: int | None) -> str:
    """Write the end of the message of a run that ended early; empty if nothing was saved.

    Args:
        saved: the step of the last checkpoint; None if there is none.
    """
    return f"; the last checkpoint is of step {saved}" if saved is not None else ""
