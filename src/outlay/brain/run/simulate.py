"""The loop of a run: chunks of steps, one compiled program for each length, and what becomes of their results."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from outlay.arrays.fits_in_memory import too_large
from outlay.arrays.gather import gather
from outlay.brain.brain_error import BrainError
from outlay.brain.run.activity import population_names
from outlay.brain.run.brain_recipe import BrainRecipe
from outlay.brain.run.brain_run import BrainRun, real_time
from outlay.brain.run.collected import Collected
from outlay.brain.run.inputs.feed import refuse_not_finite
from outlay.brain.run.not_finite import BrainStopped, first_not_finite, not_finite_problems
from outlay.brain.run.recording.events import Filter
from outlay.brain.run.recording.recording import Recording
from outlay.brain.run.saves import Saved, Saves
from outlay.core.error_types import Problem
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted
from outlay.jobs.heartbeat import beat
from outlay.program.make import program as make_program
from outlay.recipes.prepare import Prepared
from outlay.train.progress import Progress
from outlay.train.stop import Interrupted, end_on_request, last_checkpoint_in_words, on_request

_MAX_IN_FLIGHT = 2
"""Chunks under way: the devices never wait for Python, and what is shown is not far behind them."""
_MAX_WEIGHTS = 2**18
"""Numbers of a kernel that are kept for histograms."""


class Recorder(Protocol):
    """Where recorded rows go."""

    def append(self, steps: np.ndarray, rows: Mapping[str, np.ndarray]) -> None:
        """Add one row of each address for each step."""
        ...

    def recording(self) -> Recording:
        """What there is so far."""
        ...


Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype]]


def simulate(
    prepared: Prepared,
    num_steps: int,
    recorder_of: Callable[[Shapes], Recorder],
    *,
    state: Any = None,
    progress: bool = False,
    kept_in: str = "",
    saves: Saves | None = None,
    start: Saved | None = None,
) -> BrainRun:
    """Run a prepared `BrainRecipe`.

    Args:
        prepared: the recipe with its program.
        num_steps: how many steps.
        recorder_of: makes the recorder from the shape and dtype of a row of each address.
        state: what to begin with, used up; a new state if None.
        progress: show time, speed and rates on stderr.
        kept_in: where the recording is, for messages.
        saves: saves the run on its way; then SIGUSR1 or SIGTERM asks it to save and to end.
        start: what to go on from, as if the run had never stopped.

    Raises:
        BrainStopped: inputs or state are not finite.
        Interrupted: on Ctrl-C.
        Stopped: a `SystemExit` with code 75 on SIGUSR1, 143 on SIGTERM.
    """
    return _Run(prepared, num_steps, recorder_of, kept_in, saves).run(state, progress, start)


class _Run:
    def __init__(
        self,
        prepared: Prepared,
        num_steps: int,
        recorder_of: Callable[[Shapes], Recorder],
        kept_in: str,
        saves: Saves | None,
    ) -> None:
        assert isinstance(prepared.recipe, BrainRecipe)
        self.recipe, self.program = prepared.recipe, prepared.program
        self.brain, self.feed = prepared.recipe.brain, prepared.recipe.feed
        self.num_steps, self.kept_in, self.saves = num_steps, kept_in, saves
        fix = "fewer neurons: `units` in Python, `count` in a file; a kernel has a number for each pair of them"
        if found := too_large(self.program.plan, self.program.mesh, fix):
            raise BrainError(*found)
        self._refuse_too_long()
        self._refuse_late_windows()
        self.programs = {self.recipe.chunk: prepared.program}
        state = jax.eval_shape(self.recipe.init, jax.random.key(0))  # the program's may be filled up
        shapes = jax.eval_shape(self.program.step, state, self.program.batch_shapes)[1]
        recorded = {name: shapes["recorded"][name] for name in self.recipe.record}  # JAX has sorted them
        rows = {name: (leaf.shape[1:], np.dtype(leaf.dtype)) for name, leaf in recorded.items()}
        self.recorder = recorder_of(rows)
        self.filter = Filter(self.recipe.moments, self.brain.dt)
        self.collected = Collected(self.brain, shapes["outputs"])
        self.done = 0

    def run(self, state: Any, progress: bool, start: Saved | None) -> BrainRun:
        if start:
            self.done, state = start.step, start.state
            self.collected.go_on_from(start.collected)
        self.state = self.program.init(jax.random.key(self.recipe.seed)) if state is None else state
        if not start:
            self.collected.weights = self._weights()
        names = population_names(self.collected.activity.num_neurons)
        with contextlib.ExitStack() as stack:
            shown = stack.enter_context(self._progress()) if progress else None
            if self.saves:
                stack.enter_context(on_request())
            self._compile()
            self.began = time.perf_counter() - self.collected.seconds

            def show(rates: Mapping[str, float]) -> None:
                beat(self.done, f"step {self.done + 1}")
                if shown:
                    facts = "  ".join(f"{names[port]} {rate:.0f}" for port, rate in rates.items())
                    shown.show(self.done, self._seconds, f"{facts} Hz" if facts else "")

            try:
                stops = self._run_chunks(show)
            except KeyboardInterrupt as stopped:
                saved = self.saves.checkpoints.last_saved() if self.saves else None
                where = f"; the recording so far is in {self.kept_in}" if self.kept_in else ""
                raise Interrupted(self._recorded(), self.done, self.num_steps, where, saved) from stopped
            seconds = self._seconds
        if stops and self.saves:
            end_on_request(self.done, self.num_steps, self.saves.checkpoints, say=progress)
        return BrainRun(
            brain=self.brain,
            num_steps=self.num_steps,
            recording=self._recorded(),
            outputs=self.collected.outputs,
            activity=self.collected.activity,
            state=self.state,
            weights={path: (self.collected.weights[path], after) for path, after in self._weights().items()},
            seconds=seconds,
            episodes=tuple(self.recipe.loop.episodes) if self.recipe.loop else (),
        )

    def _run_chunks(self, show: Callable[[Mapping[str, float]], None]) -> bool:
        """Run what is left, and save it; whether somebody asked for a stop before the end."""
        in_flight: collections.deque[tuple[int, int, Any]] = collections.deque()

        def finish(most_left: int) -> None:
            while len(in_flight) > most_left:
                oldest = in_flight.popleft()
                try:
                    show(self._take(*oldest))
                except BaseException:
                    in_flight.clear()  # the recording would have a gap
                    raise

        stops = False
        if self.saves:
            self.saves.begin(self.done)
        try:
            for start, stop in self._spans():
                if self.saves:
                    self.saves.checkpoints.raise_if_failed()
                batch = self.feed.batch(start, stop)
                try:
                    refuse_not_finite(batch, start)
                except BrainError as error:
                    finish(0)
                    raise self._stopped(str(error).partition("\n")[0], list(error.problems)) from None
                self.state, results = self._program_of(stop - start)(self.state, batch)
                in_flight.append((start, stop, results))
                finish(0 if self.feed.listens else _MAX_IN_FLIGHT - 1)
                if self.saves:
                    is_last = stop == self.num_steps
                    stops = not is_last and self.saves.is_asked_to_stop(stop)
                    if stops or self.saves.is_due(stop, is_last=is_last):
                        finish(0)  # the recording must be there before a checkpoint after it is
                        beat(None, "saving")
                        self.saves.save(stop, self.program, self.state, self.collected.to_arrays(self._seconds))
                if stops:
                    break
            finish(0)
            if self.saves:
                self.saves.checkpoints.wait()
        except Exception:
            if jax.process_count() == 1:  # of several, another may never finish its part
                with contextlib.suppress(Exception):  # what was recorded before the failure
                    finish(0)
            raise
        finally:
            if self.saves:
                self.saves.checkpoints.close()
        return stops

    def _progress(self) -> Progress:
        dt, total = self.brain.dt, self.num_steps * self.brain.dt
        return Progress(
            self.num_steps,
            f"{dt:g} ms",
            lambda rate: real_time(rate * dt, 1.0),
            position=lambda step: f"{step * dt:,.0f}/{total:,.0f} ms",
            after={"step": self.done, "seconds": self.collected.seconds},
        )

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self.began

    def _spans(self) -> Iterator[tuple[int, int]]:
        start = self.done
        while start < self.num_steps:
            most = min(self.num_steps - start, self.saves.steps_until_due(start) if self.saves else self.num_steps)
            stop = start + min(self.feed.steps_from(start, self.recipe.chunk), most)
            yield start, stop
            start = stop

    def _take(self, start: int, stop: int, results: Any) -> dict[str, float]:
        """Record what a chunk gave; the rates in it."""
        found = gather(results)
        bad = first_not_finite(found["not_finite"])
        sound = stop - start if bad is None else bad[0]
        outputs = {name: values[:sound] for name, values in found["outputs"].items()}
        stride = self.recipe.stride
        rows = {name: values[: sound // stride] for name, values in found["recorded"].items()}
        steps = start + stride * np.arange(1, sound // stride + 1, dtype=np.int64) - 1
        self.recorder.append(*self.filter(start, outputs, steps, rows))
        rates = self.collected.add(outputs)
        self.done = start + sound
        if bad is not None:
            step, modules = self.done, bad[1]
            problems = not_finite_problems(step, self.brain.dt, modules, self.state)
            raise self._stopped(f"the run stopped in step {step} of {self.num_steps}: a state is no number", problems)
        self.feed.hear(start, outputs)
        return rates

    def _stopped(self, headline: str, problems: list[Any]) -> BrainStopped:
        recording = self._recorded()
        kept = f"; the recording of the {self.done} steps before is in {self.kept_in}" if self.kept_in else ""
        saved = self.saves.checkpoints.last_saved() if self.saves else None
        headline += kept + last_checkpoint_in_words(saved)
        return BrainStopped(headline, problems, recording, self.done)

    def _recorded(self) -> Recording:
        self.recorder.append(*self.filter.rest())
        return self.recorder.recording()

    def _compile(self) -> None:
        """Everything is compiled before the clock starts."""
        beat(None, "compiling")
        for length in dict.fromkeys(stop - start for start, stop in self._spans()):
            self._program_of(length).compiled_parts  # noqa: B018  asking for it compiles it

    def _program_of(self, length: int) -> Any:
        if length not in self.programs:
            program, feed = self.program, self.feed
            self.programs[length] = make_program(
                program.step,
                self.recipe.init,
                feed.batch(0, length),
                layout=program.layout,
                mesh=program.mesh,
                mode=program.mode,
            )
        return self.programs[length]

    def _refuse_too_long(self) -> None:
        if self.feed.num_steps is not None and self.num_steps > self.feed.num_steps:
            raise BrainError(
                f"there are inputs for {self.feed.num_steps} steps, and {self.num_steps} are asked for"
                f"\n  fix: {self.feed.num_steps} steps, longer arrays, or functions of the step"
            )

    def _refuse_late_windows(self) -> None:
        end = self.num_steps * self.brain.dt
        late = [window for window in self.recipe.moments.windows if window.start >= end]
        if late:
            what = f"it begins after the run, which ends at {end:g} ms"
            problems = [
                Problem("window", f"{w.start:g}..{w.end:g}", what, "more steps, or an earlier window") for w in late
            ]
            raise BrainError(f"{counted(len(late), 'window')} would record nothing", problems)

    def _weights(self) -> dict[str, np.ndarray]:
        """Some numbers of every kernel, evenly from all of its neurons."""
        found = {}
        for path, leaf in flatten_paths(self.program.crop(self.state))[0]:
            if path.endswith(".kernel"):
                whole = gather(leaf).astype(np.float32).reshape(-1)
                found[path] = whole[:: -(-whole.size // _MAX_WEIGHTS)].copy()
        return found
