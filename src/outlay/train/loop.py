"""Train a program: batches by global step, metrics written as they arrive, evaluations in between."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from outlay.arrays.gather_scatter import gather
from outlay.core.called_as import called_as
from outlay.core.error_types import ProgramError
from outlay.core.quantities import counted
from outlay.program.multi_step import several_steps
from outlay.program.program import Program
from outlay.train.check_fit import (
    check_data,
    check_evaluations,
    check_is_program,
    check_steps,
    check_steps_per_call,
    ends_early,
)
from outlay.train.check_step import as_metrics, check_recordable
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.data import Data, ReadAhead, programs_by_shape, shapes_of
from outlay.train.fit_result import Fit
from outlay.train.metrics_file import History, MetricsFile, as_numbers, metrics_in_words
from outlay.train.multihost import NotFinite, is_first
from outlay.train.patience import EVALUATED, Patience, PatienceCounter
from outlay.train.progress import Progress
from outlay.train.recording import MemoryRecorder, RecordedLeaves, Recorder, RowTypes
from outlay.train.saving import Saving
from outlay.train.step_loop import StepLoop

Evaluate = Callable[[Program, Any], Mapping[str, Any]]
"""`evaluate(program, state)` returns numbers by name, and only reads the state."""

OnStep = Callable[[dict[str, float]], bool | None]
"""`on_step(metrics)` returns True to end training."""


@called_as(
    "outlay.fit(program, batches, steps=100, key=jax.random.key(0))",
    num_steps="steps=",
    max_steps="steps=",
    n_steps="steps=",
    epochs="steps=: the number of batches of all epochs; data[step] is the batch of a step",
    num_epochs="steps=: the number of batches of all epochs; data[step] is the batch of a step",
    rng="key=",
    seed="key=jax.random.key(seed)",
    callback="on_step=",
    callbacks="on_step=",
    log="on_step=outlay.train.MetricsLog('tensorboard', folder='runs/mine')",
    logger="on_step=, such as outlay.train.MetricsLog('tensorboard', folder='runs/mine')",
    verbose="progress=",
    validation_data="evaluate=: a function of program and state; evaluate_every= says when",
    batch_size="outlay.TrainData(examples, batch_size=16) as the data",
    checkpoint_dir='checkpoints=outlay.Checkpoints("folder")',
    batches="data, the second argument",
    state="start=(0, state); the state is donated",
)
def fit(
    program: Program,
    data: Data,
    *,
    steps: int,
    key: Any,
    metrics_path: Path | None = None,
    progress: bool = True,
    checkpoints: Checkpoints | None = None,
    checkpoint_every: int | None = None,
    start: tuple[int, Any] | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    on_step: OnStep | None = None,
    read_ahead: int = 0,
    steps_per_call: int = 1,
    patience: Patience | None = None,
    record: str | Sequence[str] = (),
    stride: int = 1,
    recorder: Callable[[RowTypes], Recorder] | None = None,
) -> Fit:
    """Initialize the state and train a program on batches indexed by global step.

    With `start`, the run continues after that step as if it had never stopped, with the same batches and the same
    metrics file. The mesh, the layout and the number of processes may have changed.

    Args:
        program: a program whose step returns a dictionary of numbers, or of rows of numbers such as histograms; the
            entries of nested dictionaries are recorded by path.
        data: `data[step]` is the batch of a step, as in `TrainData` or a list. If batches have several shapes,
            `data.buckets` has one of each, as in `BucketedData`; each shape gets a program, and all share one state.
        steps: the total number of steps.
        key: the argument of `program.init`.
        metrics_path: a file that gets the metrics of each step as a line of JSON, as soon as they arrive; with several
            processes, the first one writes it.
        progress: show the loss, samples per second and the time left on stderr.
        checkpoints: where to save the state, concurrently with training: after the last step and at `checkpoint_every`.
        checkpoint_every: the number of steps between checkpoints; None to save only after the last step.
        start: the step and the state to continue from, as returned by `checkpoints.restore(program)`; the state is
            donated.
        evaluate: `evaluate(program, state)` returns numbers on held-out data, such as
            `outlay.evaluate(held_out, state, examples)`. They become metrics of the step, named `evaluate.NAME`.
        evaluate_every: the number of steps between evaluations; the last step is always evaluated. None for only that.
        on_step: `on_step(metrics)` gets the metrics of each step, in order, and returns True to end training: after
            that step if it was evaluated, otherwise one step later, which is already in flight.
        read_ahead: the number of batches that a thread reads in advance, for data that is sometimes slow to read; 0
            reads each batch between two steps. With `data.on(program)` the thread also places them on the devices.
        steps_per_call: run this many steps in one compiled call, which scans over their batches. Use it if a step is so
            short that the Python overhead of a call matters. The numbers are the same up to rounding. Metrics arrive
            once per call, so `on_step` ends training after the whole call. If fewer steps are left before an
            evaluation, a recorded step, a checkpoint or the end, they run one by one.
        patience: ends training when a metric has not improved for some evaluations. With `start`, the count continues
            from the metrics file.
        record: the leaves of the state to record, as path patterns such as `params.**.bias`. Recording does not change
            the result.
        stride: the number of steps between two recorded steps.
        recorder: creates the recorder from the shapes and dtypes of its rows by path; None records in memory.

    With `checkpoints`, SIGUSR1 or SIGTERM to one or all processes requests a stop: the state is saved after one of the
    next steps, and the program exits with code 75, so that it can be continued, or with 143 after SIGTERM. A second
    SIGTERM ends it at once. Under `outlay launch` the launcher handles both signals; a SIGTERM handler of the program
    or of JAX's preemption service stays in place.

    Raises:
        Interrupted: on Ctrl-C, after the metrics so far were written.
        Stopped: a `SystemExit`, on SIGUSR1 or SIGTERM.
        CheckpointError: a checkpoint cannot be written (raised after the next step), or the metrics file lacks a step
            before `start`.
        OutputError: the metrics cannot be written, or would replace a file with other content.
        ProgramError: there is no step to run, no batch for a step, or no folder for checkpoints, or an output of the
            step is not a number; all of that before the first step. Or `evaluate` has donated the state.

    Example:
        >>> mesh = outlay.mesh(data=8)
        >>> step = lambda state, batch: (state + batch.sum(), {"loss": batch.mean()})
        >>> program = outlay.program(step, lambda key: 0.0, np.ones(8), layout=outlay.data_parallel(), mesh=mesh)
        >>> done = outlay.fit(program, [np.ones(8), np.zeros(8)], steps=2, key=None, progress=False)
        >>> [metrics["loss"] for metrics in done.history], float(done.state)
        ([1.0, 0.0], 8.0)
    """
    first, state = start or (0, None)
    check_is_program(program)
    check_steps(steps, first, checkpoints, checkpoint_every)
    if read_ahead < 0:
        raise ProgramError(f"read_ahead={read_ahead}: the number of batches to read in advance cannot be negative")
    check_evaluations(evaluate, evaluate_every, patience)
    check_steps_per_call(program, data, steps_per_call)
    check_data(data, steps)
    check_recordable(program.lowered.out_info[1])
    recorded = RecordedLeaves(program, record, stride)
    samples_a_step = next((leaf.shape[0] for leaf in jax.tree.leaves(program.batch_shapes) if leaf.shape), 0)
    with contextlib.ExitStack() as stack:
        writes = metrics_path if is_first() else None
        writer = stack.enter_context(MetricsFile(writes, after=first)) if writes else None
        counter = PatienceCounter(patience) if patience else None
        if counter:
            counter.continue_after(writer.earlier if writer else (), first, from_file=metrics_path is not None)
            # A run that patience has ended must not train on when it is resumed.
            steps = first if counter.is_used_up else steps
        history = History(writer.earlier if writer else ())
        if writer:
            writer.earlier.clear()  # the file has them
        before = history.last or {"step": first, "seconds": 0.0}
        since = 0 if history.last else first
        saving = Saving(checkpoints, checkpoint_every) if checkpoints else None
        rows = (recorder or (lambda types: MemoryRecorder(types, 1.0)))(recorded.types)
        training = _Training(
            program,
            steps,
            step=first,
            state=state,
            saving=saving,
            key=key,
            data=data,
            read_ahead=read_ahead,
            history=history,
            writer=writer,
            recorded=recorded,
            recorder=rows,
            evaluate=evaluate,
            evaluate_every=evaluate_every,
            on_step=on_step,
            steps_per_call=steps_per_call,
            counter=counter,
        )
        training.run(_progress(steps, samples_a_step, before) if progress else None)
    seconds = history.last["seconds"] if history.last else 0.0
    return Fit(training.state, list(history), seconds, samples_a_step * (training.step - since), rows.recording())


@dataclass(frozen=True)
class _Results:
    """The results of a call: the metrics of its steps, stacked if there are several, and what the last step adds."""

    num_steps: int
    metrics: Any
    batches: Sequence[Any] = ()
    leaves: Mapping[str, Any] = field(default_factory=dict)
    evaluated: Mapping[str, Any] = field(default_factory=dict)


class _Training(StepLoop):
    """Run training steps, one or several per call, and collect their metrics."""

    def __init__(
        self,
        program: Program,
        num_steps: int,
        *,
        key: Any,
        data: Data,
        read_ahead: int,
        history: History,
        writer: MetricsFile | None,
        recorded: RecordedLeaves,
        recorder: Recorder,
        evaluate: Evaluate | None,
        evaluate_every: int | None,
        on_step: OnStep | None,
        steps_per_call: int,
        counter: PatienceCounter | None,
        **begins: Any,
    ) -> None:
        super().__init__(program, num_steps, **begins)
        self._key, self._data, self._read_ahead = key, data, read_ahead
        self._history, self._writer = history, writer
        self._recorded, self._recorder = recorded, recorder
        self._evaluation, self._every, self._on_step = evaluate, evaluate_every, on_step
        self._steps_per_call, self._counter = steps_per_call, counter
        self._not_finite = NotFinite()

    def begin(self, stack: contextlib.ExitStack) -> float:
        self.program.agree(
            steps=self.num_steps,
            checkpoint_every=self.saving.every if self.saving else None,
            evaluate_every=self._every,
            patience=self._counter and self._counter.patience,
            steps_per_call=self._steps_per_call,
            start=self.step,
            key=self._key,
        )
        longest = self.num_steps - self.step
        self._programs = programs_by_shape(self.program, self._data)
        self._take_several = (
            several_steps(self.program, self._steps_per_call) if 1 < self._steps_per_call <= longest else None
        )
        if self._take_several is None:  # otherwise the single step is compiled only when a shorter rest is due
            _ = self.program.compiled_parts
        if self.state is None:
            self.state = self.program.init(self._key)
        if self._read_ahead:
            self._data = stack.enter_context(ReadAhead(self._data, self._read_ahead, self.num_steps))
        return self._history.last["seconds"] if self._history.last else 0.0

    def next_stop(self, start: int) -> int:
        due = [self.num_steps, self._recorded.next_step(start)]
        if self._evaluation and self._every:
            due.append(start + self._every - start % self._every)
        if self.saving:
            due.append(self.saving.next_due(start))
        stop = start + self._steps_per_call
        return stop if self._take_several and stop <= min(due) else start + 1

    def call(self, start: int, stop: int) -> Any:
        began = time.perf_counter()
        batches = [_batch(self._data, step, self.num_steps) for step in range(start, stop)]
        self.count_input(began)
        if self._take_several and len(batches) > 1:
            self.state, metrics = self._take_several(self.state, batches)
        else:
            program = self._programs.get(shapes_of(batches[0]), self.program)
            self.state, metrics = program(self.state, batches[0])
        return _Results(len(batches), metrics, batches, self._recorded.of(self.state, stop))

    def is_evaluated(self, stop: int, *, is_last: bool) -> bool:
        return self._evaluation is not None and (is_last or (bool(self._every) and stop % self._every == 0))

    def evaluate(self, results: Any) -> Any:
        assert self._evaluation
        return dataclasses.replace(results, evaluated=_evaluated(self._evaluation, self.program, self.state))

    def can_fetch(self, results: Any) -> bool:
        # Recorded leaves may live in other processes too; fetching them is a collective that those may never join.
        is_ready = not results.leaves and all(leaf.is_ready() for leaf in jax.tree.leaves(results.metrics))
        return super().can_fetch(results) or is_ready

    def outputs(self, results: Any) -> Any:
        return results.metrics

    def fetch(self, results: Any) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
        fetched = as_metrics(jax.device_get(results.metrics))
        steps = [
            {name: as_numbers(fetched[name] if results.num_steps == 1 else fetched[name][step]) for name in fetched}
            for step in range(results.num_steps)
        ]
        self._not_finite.look(self.step + 1, steps, results.batches)
        steps[-1] |= results.evaluated
        ordered = [dict(sorted(metrics.items(), key=lambda item: item[0] != "loss")) for metrics in steps]
        return ordered, gather(results.leaves)

    def record(self, start: int, stop: int, fetched: tuple[list[dict[str, Any]], dict[str, np.ndarray]]) -> str:
        metrics, (steps, leaves) = {}, fetched
        if leaves:
            self._recorder.append(np.array([stop - 1]), {path: leaf[None] for path, leaf in leaves.items()})
        for step, numbers in enumerate(steps, start + 1):
            metrics = {"step": step, **numbers, "seconds": round(self.seconds, 4)}
            self._history.add(metrics)
            if self._progress and isinstance(loss := metrics.get("loss"), float):
                self._progress.plot(step, loss)
            if self._writer:
                self._writer.write(metrics)
            is_asked_to_end = bool(self._on_step and self._on_step(dict(metrics)))
            is_out_of_patience = bool(self._counter and self._counter.is_used_up_after(metrics))
            self.stop_requested = self.stop_requested or is_asked_to_end or is_out_of_patience
        return metrics_in_words(metrics, between="  ")

    def partial(self) -> tuple[Any, str]:
        where = f"; the metrics so far are kept in {self._writer.path}" if self._writer else ""
        return list(self._history), where


def _progress(steps: int, samples_a_step: int, after: Mapping[str, float]) -> Progress:
    each = counted(samples_a_step, "sample")
    return Progress(steps, each, lambda rate: f"{rate * samples_a_step:,.0f} samples/s", after=after)


def _evaluated(evaluate: Evaluate, program: Program, state: Any) -> dict[str, float]:
    """Run an evaluation, and name its results as metrics of a step."""
    metrics = evaluate(program, state)
    if any(leaf.is_deleted() for leaf in jax.tree.leaves(program.arrays_of(state))):
        raise ProgramError(
            "evaluate(program, state) donated the state that training continues with"
            "\n  fix: a program that only reads: outlay.program(..., donate=False)"
        )
    return {f"{EVALUATED}{name}": as_numbers(value) for name, value in metrics.items()}


def _batch(data: Data, step: int, steps: int) -> Any:
    try:
        return data[step]
    except (IndexError, KeyError) as error:
        raise ends_early(step, steps) from error
