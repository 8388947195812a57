"""Simulate a Brain in chunks of steps, with one compiled program per chunk length."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay import Program
from outlay.arrays import gather
from outlay.brain.module import BrainError
from outlay.brain.run.brain_recipe import BrainRecipe, generated_in_words
from outlay.brain.run.brain_run import BrainRun, real_time
from outlay.brain.run.feed import check_finite
from outlay.brain.run.recording_schedule import Filter
from outlay.brain.run.run_statistics import Collected
from outlay.brain.spike_inputs import check_spikes
from outlay.errors import Problem
from outlay.kit import (
    RECORDED_ROWS,
    Prepared,
    Progress,
    Recorder,
    RowTypes,
    Saved,
    Saving,
    StepLoop,
    counted,
    flatten_paths,
    last_checkpoint_in_words,
    memory_problems,
    split_path,
)
from outlay.train import Recording

_MAX_WEIGHTS = 2**18
"""The size of a kernel's sample for histograms."""


def check_simulation(prepared: Prepared, num_steps: int) -> None:
    """Raise if a prepared `BrainRecipe` cannot run for this many steps; nothing is computed or written.

    Args:
        prepared: the recipe with its program.
        num_steps: the number of steps.

    Raises:
        BrainError: the Brain does not fit into memory, its inputs end too early, or a window starts after the last
            step.
    """
    assert isinstance(prepared.recipe, BrainRecipe)
    recipe, program = prepared.recipe, prepared.program
    fix = "fewer neurons: `units` in Python, `count` in a file; a kernel has a number for each pair of them"
    if excess := memory_problems(program.plan, program.mesh, fix):
        raise BrainError(*excess)
    if recipe.feed.num_steps is not None and num_steps > recipe.feed.num_steps:
        raise BrainError(
            f"there are inputs for {recipe.feed.num_steps} steps, but the run needs {num_steps}"
            f"\n  fix: {recipe.feed.num_steps} steps, longer arrays, or functions of the step"
        )
    end = num_steps * recipe.brain.dt
    if late := [window for window in recipe.moments.windows if window.start >= end]:
        what = f"it begins after the run, which ends at {end:g} ms"
        problems = [
            Problem("window", f"{w.start:g}..{w.end:g}", what, "more steps, or an earlier window") for w in late
        ]
        raise BrainError(f"{counted(len(late), 'window')} would record nothing", problems)


def simulate(
    prepared: Prepared,
    num_steps: int,
    recorder_of: Callable[[RowTypes], Recorder],
    *,
    state: Any = None,
    progress: bool = False,
    kept_in: str = "",
    saving: Saving | None = None,
    start: Saved | None = None,
    programs: dict[int, Program] | None = None,
) -> BrainRun:
    """Run a prepared `BrainRecipe` that passed `check_simulation`.

    Args:
        prepared: the recipe with its program.
        num_steps: the number of steps.
        recorder_of: creates the recorder from the shape and dtype of a row of each address.
        state: the initial state, which is donated; None for a new state.
        progress: show time, speed and rates on stderr.
        kept_in: the folder of the recording, for messages.
        saving: saves checkpoints; SIGUSR1 or SIGTERM then make the run save and end.
        start: the saved run to continue.
        programs: programs by the number of steps in a call; those that are made are added.

    Raises:
        BrainStopped: inputs or state are not finite.
        Interrupted: on Ctrl-C.
        Stopped: a `SystemExit` with code 75 on SIGUSR1, 143 on SIGTERM.
    """
    begin = start or Saved(0, state)
    simulation = _Simulation(prepared, num_steps, recorder_of, kept_in, saving, begin)
    if programs is not None:
        simulation.programs = programs
    simulation.run(simulation.progress() if progress else None)
    return simulation.result()


class _Simulation(StepLoop):
    """Run one chunk of steps per call, with one compiled program per chunk length."""

    def __init__(
        self,
        prepared: Prepared,
        num_steps: int,
        recorder_of: Callable[[RowTypes], Recorder],
        kept_in: str,
        saving: Saving | None,
        begin: Saved,
    ) -> None:
        assert isinstance(prepared.recipe, BrainRecipe)
        super().__init__(prepared.program, num_steps, step=begin.step, state=begin.state, saving=saving)
        self.recipe, self.kept_in = prepared.recipe, kept_in
        self.brain, self.feed = prepared.recipe.brain, prepared.recipe.feed
        # A closed loop needs the outputs of one call before it can make the inputs of the next.
        self.max_in_flight = 1 if self.feed.listens else StepLoop.max_in_flight
        self.programs: dict[int, Program] = {self.recipe.chunk: prepared.program}
        shapes: Any = self.program.output_shapes
        recorded = {name: shapes["recorded"][name] for name in self.recipe.record}  # JAX has sorted them
        rows = {name: (leaf.shape[1:], np.dtype(leaf.dtype)) for name, leaf in recorded.items()}
        self.recorder = recorder_of(rows)
        self.filter = Filter(self.recipe.moments, self.brain.dt)
        self.gathered = Collected(self.brain, shapes["outputs"])
        self.names = self.gathered.activity.names
        if begin.step:
            self.gathered.continue_from(begin.collected)
            self.filter.continue_from(begin.collected, rows)
            self.feed.continue_from(begin.collected)

    def progress(self) -> Progress:
        """Create a progress display of simulated time and its speed."""
        dt, total = self.brain.dt, self.num_steps * self.brain.dt
        return Progress(
            self.num_steps,
            f"{dt:g} ms",
            lambda rate: real_time(rate * dt, 1.0),
            position=lambda step: f"{step * dt:,.0f}/{total:,.0f} ms",
            after={"step": self.step, "seconds": self.gathered.seconds},
        )

    def begin(self, stack: contextlib.ExitStack) -> float:
        if self.state is None:
            self.state = self.program.init(jax.random.key(self.recipe.seed))
        if not self.step:
            self.gathered.weights = self._weights()
        # Compile all chunk lengths now, the shorter last chunk included: later, compiling would count as simulation
        # time.
        for length in dict.fromkeys(stop - start for start, stop in self.spans()):
            _ = self._program_of(length).compiled_parts  # compile now
        return self.gathered.seconds

    def next_stop(self, start: int) -> int:
        return start + self.feed.steps_from(start, min(self.recipe.chunk, self.num_steps - start))

    def call(self, start: int, stop: int) -> Any:
        began = time.perf_counter()
        batch = self.feed.batch(start, stop)
        self.count_input(began)
        try:
            check_finite(batch, start)
            check_spikes(self.brain.wiring, batch, start=start)
        except BrainError as error:
            # Record the chunks in flight first: the error carries the recording of all valid steps.
            self.finish(0)
            headline = str(error).partition("\n")[0].removesuffix(":")
            raise self._not_finite(headline, list(error.problems)) from None
        self.state, results = self._program_of(stop - start)(self.state, batch)
        return results

    def fetch(self, results: Any) -> Any:
        return gather(results)

    def record(self, start: int, stop: int, fetched: Any) -> str:
        bad = first_not_finite(fetched["not_finite"])
        sound = stop - start if bad is None else bad[0]
        outputs = {name: values[:sound] for name, values in fetched["outputs"].items()}
        stride = self.recipe.stride
        rows = {name: values[: sound // stride] for name, values in fetched["recorded"].items()}
        steps = start + stride * np.arange(1, sound // stride + 1, dtype=np.int64) - 1
        self.recorder.append(*self.filter(start, outputs, steps, rows))
        rates = self.gathered.add(outputs)
        self.step = start + sound
        if bad is not None:
            whole = {name: self.program.gather({name: self.state[name]})[name] for name in bad[1]}
            problems = not_finite_problems(self.step, self.brain.dt, bad[1], whole)
            headline = f"the run stopped in step {self.step} of {self.num_steps}: a state is not finite"
            raise self._not_finite(headline, problems)
        # After the check: an environment must not act on NaNs.
        self.feed.receive(start, outputs)
        return "  ".join(f"{self.names[port]} {rate:.0f}" for port, rate in rates.items()) + (" Hz" if rates else "")

    def partial(self) -> tuple[Recording, str]:
        return self._recorded(), f"; the recording so far is in {self.kept_in}" if self.kept_in else ""

    def collected(self) -> Mapping[str, np.ndarray]:
        return {
            **self.gathered.to_arrays(self.seconds),
            **self.filter.to_arrays(),
            **self.feed.to_arrays(),
            RECORDED_ROWS: np.array(self.recorder.num_rows),
        }

    def result(self) -> BrainRun:
        """Return the result of the finished run."""
        return BrainRun(
            brain=self.brain,
            num_steps=self.num_steps,
            recording=self._recorded(),
            outputs=self.gathered.outputs,
            activity=self.gathered.activity,
            state=self.state,
            weights={path: (self.gathered.weights[path], after) for path, after in self._weights().items()},
            seconds=self.total_seconds,
            episodes=tuple(self.recipe.loop.episodes) if self.recipe.loop else (),
            note=generated_in_words(self.recipe.generated),
        )

    def _not_finite(self, headline: str, problems: list[Any]) -> BrainStopped:
        recording = self._recorded()
        where = f"; the recording of the {self.step} steps before is in {self.kept_in}" if self.kept_in else ""
        headline += where + last_checkpoint_in_words(self.last_saved())
        return BrainStopped(headline, problems, recording, self.step)

    def _recorded(self) -> Recording:
        self.recorder.append(*self.filter.rest())
        return self.recorder.recording()

    def _program_of(self, length: int) -> Any:
        if length not in self.programs:
            self.programs[length] = self.program.with_batch(self.feed.batch(0, length))
        return self.programs[length]

    def _weights(self) -> dict[str, np.ndarray]:
        """Sample every kernel, evenly over its neurons."""
        weights = {}
        for path, leaf in flatten_paths(self.state)[0]:
            if path.endswith(".kernel"):
                # One by one, so that only one is on the host.
                ((_, kernel),) = flatten_paths(self.program.gather(_alone(path, leaf)))[0]
                # Copy the sample: a NumPy view would keep the whole kernel in memory.
                whole = kernel.astype(np.float32).reshape(-1)
                weights[path] = whole[:: -(-whole.size // _MAX_WEIGHTS)].copy()
        return weights


def _alone(path: str, leaf: Any) -> Any:
    """Return a state that has only one leaf."""
    for name in reversed(split_path(path)):
        leaf = {name: leaf}
    return leaf


class BrainStopped(BrainError):
    """Raised if a run cannot continue.

    Attributes:
        recording: the recording so far.
        num_steps: the number of valid steps.
    """

    def __init__(self, headline: str, problems: list[Problem], recording: Recording, num_steps: int) -> None:
        super().__init__(headline, problems)
        self.recording = recording
        self.num_steps = num_steps


def first_not_finite(first: Mapping[str, Any]) -> tuple[int, list[str]] | None:
    """Find the first step with values that are not finite, and its modules; None if there is none.

    Args:
        first: the first such step of each module, or -1.
    """
    bad = {module: int(step) for module, step in first.items() if int(step) >= 0}
    if not bad:
        return None
    step = min(bad.values())
    return step, [module for module, its in bad.items() if its == step]


def not_finite_problems(step: int, dt: float, modules: list[str], state: Mapping[str, Any]) -> list[Problem]:
    """Yield a problem for each module, with its leaves that are not finite.

    Args:
        step: the step, counted from 0.
        dt: the duration of a step in ms.
        modules: the affected modules.
        state: the state some steps later.
    """
    problems = []
    for module in modules:
        counted = {path: _num_bad(leaf) for path, leaf in flatten_paths({module: state[module]})[0]}
        bad = [f"{path} ({number:,} of {size:,})" for path, (number, size) in counted.items() if number]
        problems.append(
            Problem(
                "not finite",
                module,
                f"NaN or infinity in step {step} ({step * dt:g} ms): {', '.join(bad) or 'in its outputs'}",
                "a smaller dt or learning rate, smaller inputs, or dtype float32",
            )
        )
    return problems


def _num_bad(leaf: Any) -> tuple[int, int]:
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return 0, leaf.size
    return int(np.count_nonzero(~np.isfinite(np.asarray(leaf).astype(np.float32)))), leaf.size
