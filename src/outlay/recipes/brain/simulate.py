"""The loop of a run: chunks of steps, one compiled program for each length, and what becomes of their results."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from outlay.core.errors import BrainError
from outlay.core.paths import flatten_paths
from outlay.execute.make import program as make_program
from outlay.launch.heartbeat import beat
from outlay.place.gather import gather
from outlay.recipes.brain.activity import Activity, population_names
from outlay.recipes.brain.brain_recipe import BrainRecipe
from outlay.recipes.brain.brain_run import BrainRun
from outlay.recipes.brain.inputs.feed import refuse_not_finite
from outlay.recipes.brain.progress import BrainProgress
from outlay.recipes.brain.recording.events import Filter
from outlay.recipes.brain.recording.recording import Recording
from outlay.recipes.brain.stopped import BrainInterrupted, BrainStopped, first_not_finite, not_finite_problems
from outlay.recipes.prepare import Prepared

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
) -> BrainRun:
    """Run a prepared `BrainRecipe`.

    Args:
        prepared: the recipe with its program.
        num_steps: how many steps.
        recorder_of: makes the recorder from the shape and dtype of a row of each address.
        state: what to begin with, used up; a new state if None.
        progress: show time, speed and rates on stderr.
        kept_in: where the recording is, for messages.

    Raises:
        BrainStopped: inputs or state are not finite.
        BrainInterrupted: on Ctrl-C.
    """
    return _Run(prepared, num_steps, recorder_of, kept_in).run(state, progress)


class _Run:
    def __init__(
        self, prepared: Prepared, num_steps: int, recorder_of: Callable[[Shapes], Recorder], kept_in: str
    ) -> None:
        assert isinstance(prepared.recipe, BrainRecipe)
        self.recipe, self.program = prepared.recipe, prepared.program
        self.brain, self.feed = prepared.recipe.brain, prepared.recipe.feed
        self.num_steps, self.kept_in = num_steps, kept_in
        self._refuse_too_long()
        self.programs = {self.recipe.chunk: prepared.program}
        state = jax.eval_shape(self.recipe.init, jax.random.key(0))  # the program's may be filled up
        shapes = jax.eval_shape(self.program.step, state, self.program.batch_shapes)[1]
        recorded = {name: shapes["recorded"][name] for name in self.recipe.record}  # JAX has sorted them
        rows = {name: (leaf.shape[1:], np.dtype(leaf.dtype)) for name, leaf in recorded.items()}
        self.recorder = recorder_of(rows)
        self.filter = Filter(self.recipe.moments, self.brain.dt)
        ports = self.brain.wiring.output_ports
        kinds = {f"{m}:{p}": port for m, by_port in ports.items() for p, port in by_port.items()}
        spikes = {name: shapes["outputs"][name].shape[1:] for name, port in kinds.items() if port.kind == "spikes"}
        self.activity = Activity({name: int(np.prod(shape)) for name, shape in spikes.items()}, self.brain.dt)
        self.outputs: dict[str, list[np.ndarray]] = {
            name: [np.zeros((0, *shapes["outputs"][name].shape[1:]), shapes["outputs"][name].dtype)]
            for name in self.brain.outputs
        }
        self.done = 0

    def run(self, state: Any, progress: bool) -> BrainRun:
        self.state = self.program.init(jax.random.key(self.recipe.seed)) if state is None else state
        before = self._weights()
        in_flight: collections.deque[tuple[int, int, Any]] = collections.deque()
        names = population_names(self.activity.num_neurons)
        with contextlib.ExitStack() as stack:
            shown = stack.enter_context(BrainProgress(self.num_steps, self.brain.dt)) if progress else None
            self._compile()
            began = time.perf_counter()

            def finish_oldest() -> None:
                rates = self._take(*in_flight.popleft())
                beat(self.done, f"step {self.done + 1}")
                if shown:
                    shown.show(self.done, time.perf_counter() - began, {names[port]: r for port, r in rates.items()})

            try:
                for start, stop in self._spans():
                    batch = self._batch(start, stop, finish_oldest, in_flight)
                    self.state, results = self._program_of(stop - start)(self.state, batch)
                    in_flight.append((start, stop, results))
                    while len(in_flight) >= (1 if self.feed.listens else _MAX_IN_FLIGHT):
                        finish_oldest()
                while in_flight:
                    finish_oldest()
            except KeyboardInterrupt as stopped:
                raise BrainInterrupted(self._recorded(), self.done, self.num_steps, self.kept_in) from stopped
            seconds = time.perf_counter() - began
        return BrainRun(
            brain=self.brain,
            num_steps=self.num_steps,
            recording=self._recorded(),
            outputs={name: np.concatenate(parts) for name, parts in self.outputs.items()},
            activity=self.activity,
            state=self.state,
            weights={path: (before[path], after) for path, after in self._weights().items()},
            seconds=seconds,
            episodes=tuple(self.recipe.loop.episodes) if self.recipe.loop else (),
        )

    def _spans(self):
        start = 0
        while start < self.num_steps:
            stop = start + min(self.feed.steps_from(start, self.recipe.chunk), self.num_steps - start)
            yield start, stop
            start = stop

    def _batch(self, start: int, stop: int, finish_oldest: Callable[[], None], in_flight: Any) -> Any:
        batch = self.feed.batch(start, stop)
        try:
            refuse_not_finite(batch, start)
        except BrainError as error:
            while in_flight:
                finish_oldest()
            raise self._stopped(str(error).partition("\n")[0], list(error.problems)) from None
        return batch

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
        rates = self.activity.add({name: outputs[name] for name in self.activity.num_neurons})
        for name, parts in self.outputs.items():
            parts.append(outputs[name])
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
        return BrainStopped(headline + kept, problems, recording, self.done)

    def _recorded(self) -> Recording:
        self.recorder.append(*self.filter.rest())
        return self.recorder.recording()

    def _compile(self) -> None:
        """Everything is compiled before the clock starts."""
        beat(None, "compiling")
        for length in dict.fromkeys(stop - start for start, stop in self._spans()):
            self._program_of(length).compiled  # noqa: B018

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
                f"\n  cure: {self.feed.num_steps} steps, longer arrays, or functions of the step"
            )

    def _weights(self) -> dict[str, np.ndarray]:
        """Some numbers of every kernel, evenly from all of its neurons."""
        found = {}
        for path, leaf in flatten_paths(self.program.crop(self.state))[0]:
            if path.endswith(".kernel"):
                whole = gather(leaf).astype(np.float32).reshape(-1)
                found[path] = whole[:: -(-whole.size // _MAX_WEIGHTS)].copy()
        return found
