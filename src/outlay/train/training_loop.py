"""Train a program: one or several steps a call, their metrics, evaluations and recorded leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from outlay.arrays.gather_scatter import gather
from outlay.core.error_types import ProgramError
from outlay.core.quantities import counted
from outlay.devices.mesh_info import is_first
from outlay.program.multi_step import several_steps
from outlay.program.program import Program
from outlay.train.check_fit import check_data, check_evaluations, check_steps, check_steps_per_call, ends_early
from outlay.train.check_step import as_metrics, check_recordable
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.data import Data, ReadAhead, programs_by_shape, shapes_of
from outlay.train.fit_result import Fit
from outlay.train.metrics_file import History, MetricsFile, as_numbers, metrics_in_words
from outlay.train.patience import EVALUATED
from outlay.train.progress import Progress
from outlay.train.recording import NOTHING_RECORDED, MemoryRecorder, RecordedLeaves, Recorder, RowTypes
from outlay.train.run_options import RunOptions
from outlay.train.saving import Saving
from outlay.train.step_loop import StepLoop

if TYPE_CHECKING:
    from outlay.train.not_finite import NotFinite
    from outlay.train.patience_counter import PatienceCounter

Evaluate = Callable[[Program, Any], Mapping[str, Any]]
"""`evaluate(program, state)` returns numbers by name, and only reads the state."""

OnStep = Callable[[dict[str, float]], bool | None]
"""`on_step(metrics)` returns True to end training."""


@dataclass(frozen=True)
class _Results:
    """The results of a call: the metrics of its steps, stacked if there are several, and what the last step adds."""

    num_steps: int
    metrics: Any
    batches: Sequence[Any] = ()
    leaves: Mapping[str, Any] = field(default_factory=dict)
    evaluated: Mapping[str, Any] = field(default_factory=dict)


class TrainingLoop(StepLoop):
    """Run training steps, one or several per call, and collect their metrics.

    Args:
        program: the program.
        num_steps: the total number of steps.
        options: how it is evaluated and stepped.
        key: the argument of `program.init`.
        data: the batches by global step.
        read_ahead: the number of batches that are read in advance.
        history: gets the metrics of each step.
        writer: writes them to a file; None in other processes than the first.
        recorded: the leaves to record; None for nothing.
        recorder: gets their rows.
        evaluate: evaluates on held-out data; None for never.
        on_step: gets the metrics of each step too.
        counter: ends training early; None for never.
        **begins: as of `StepLoop`: the step, the state and what saves.
    """

    def __init__(
        self,
        program: Program,
        num_steps: int,
        *,
        options: RunOptions,
        key: Any,
        data: Data,
        read_ahead: int,
        history: History,
        writer: MetricsFile | None,
        recorded: RecordedLeaves | None,
        recorder: Recorder | None,
        evaluate: Evaluate | None,
        on_step: OnStep | None,
        counter: PatienceCounter | None,
        **begins: Any,
    ) -> None:
        super().__init__(program, num_steps, **begins)
        self._key, self._data, self._read_ahead = key, data, read_ahead
        self._history, self._writer = history, writer
        self._recorded, self._recorder = recorded, recorder
        self._evaluation, self._every, self._on_step = evaluate, options.evaluate_every, on_step
        self._steps_per_call, self._counter = options.steps_per_call or 1, counter
        self._not_finite: NotFinite | None = None
        if jax.process_count() > 1:  # the loss is the same in all of them
            from outlay.train.not_finite import NotFinite

            self._not_finite = NotFinite()

    def begin(self, stack: contextlib.ExitStack) -> float:
        """Compile the program and initialize the state, once all processes are seen to train the same."""
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
        """Return the end of the call: several steps, unless something is due before."""
        due = [self.num_steps]
        if self._recorded:
            due.append(self._recorded.next_step(start))
        if self._evaluation and self._every:
            due.append(start + self._every - start % self._every)
        if self.saving:
            due.append(self.saving.next_due(start))
        stop = start + self._steps_per_call
        return stop if self._take_several and stop <= min(due) else start + 1

    def call(self, start: int, stop: int) -> Any:
        """Dispatch the steps on their batches."""
        began = time.perf_counter()
        batches = [_batch(self._data, step, self.num_steps) for step in range(start, stop)]
        self.count_input(began)
        if self._take_several and len(batches) > 1:
            self.state, metrics = self._take_several(self.state, batches)
        else:
            program = self._programs.get(shapes_of(batches[0]), self.program)
            self.state, metrics = program(self.state, batches[0])
        leaves = self._recorded.of(self.state, stop) if self._recorded else {}
        return _Results(len(batches), metrics, batches, leaves)

    def is_evaluated(self, stop: int, *, is_last: bool) -> bool:
        """Return whether to evaluate the state after a call."""
        return self._evaluation is not None and (is_last or (bool(self._every) and stop % self._every == 0))

    def evaluate(self, results: Any) -> Any:
        """Evaluate the state, and add the metrics to those of the latest call."""
        assert self._evaluation
        return dataclasses.replace(results, evaluated=_evaluated(self._evaluation, self.program, self.state))

    def can_fetch(self, results: Any) -> bool:
        """Return whether results can be fetched after a failure."""
        # Recorded leaves may live in other processes too; fetching them is a collective that those may never join.
        is_ready = not results.leaves and all(leaf.is_ready() for leaf in jax.tree.leaves(results.metrics))
        return super().can_fetch(results) or is_ready

    def outputs(self, results: Any) -> Any:
        """Return the metrics of a call."""
        return results.metrics

    def fetch(self, results: Any) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
        """Fetch the metrics of each step, and the recorded leaves."""
        fetched = as_metrics(jax.device_get(results.metrics))
        steps = [
            {name: as_numbers(fetched[name] if results.num_steps == 1 else fetched[name][step]) for name in fetched}
            for step in range(results.num_steps)
        ]
        if self._not_finite:
            self._not_finite.look(self.step + 1, steps, results.batches)
        steps[-1] |= results.evaluated
        ordered = [dict(sorted(metrics.items(), key=lambda item: item[0] != "loss")) for metrics in steps]
        return ordered, gather(results.leaves) if results.leaves else {}

    def record(self, start: int, stop: int, fetched: tuple[list[dict[str, Any]], dict[str, np.ndarray]]) -> str:
        """Write and remember the metrics of the steps, and end training where they ask for it."""
        metrics, (steps, leaves) = {}, fetched
        if leaves and self._recorder:
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
        """Return the metrics so far, and where they are."""
        where = f"; the metrics so far are kept in {self._writer.path}" if self._writer else ""
        return list(self._history), where


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


def train(
    program: Program,
    data: Data,
    options: RunOptions,
    *,
    key: Any,
    metrics_path: Path | None = None,
    progress: bool = True,
    checkpoints: Checkpoints | None = None,
    start: tuple[int, Any] | None = None,
    evaluate: Evaluate | None = None,
    on_step: OnStep | None = None,
    read_ahead: int = 0,
    recorder: Callable[[RowTypes], Recorder] | None = None,
) -> Fit:
    """Train as `outlay.fit` does, which says what the arguments are; `options` are those of them that a run has too."""
    first, state = start or (0, None)
    steps = options.steps or 0
    check_steps(steps, first, checkpoints, options.checkpoint_every)
    if read_ahead < 0:
        raise ProgramError(f"read_ahead={read_ahead}: the number of batches to read in advance cannot be negative")
    check_evaluations(evaluate, options.evaluate_every, options.rule)
    check_steps_per_call(program, data, 1 if options.steps_per_call is None else options.steps_per_call)
    check_data(data, steps)
    check_recordable(program.returned_outputs)
    stride = 1 if options.stride is None else options.stride
    is_recorded = options.record or recorder or type(stride) is not int or stride != 1  # or is wrong, and is refused
    recorded = RecordedLeaves(program, options.record, stride) if is_recorded else None
    samples_a_step = next((leaf.shape[0] for leaf in jax.tree.leaves(program.batch_shapes) if leaf.shape), 0)
    with contextlib.ExitStack() as stack:
        writes = metrics_path if is_first() else None
        writer = stack.enter_context(MetricsFile(writes, after=first)) if writes else None
        counter = None
        if options.rule:
            from outlay.train.patience_counter import PatienceCounter

            counter = PatienceCounter(options.rule)
            counter.continue_after(writer.earlier if writer else (), first, from_file=metrics_path is not None)
            # A run that patience has ended must not train on when it is resumed.
            steps = first if counter.is_used_up else steps
        history = History(writer.earlier if writer else ())
        if writer:
            writer.earlier.clear()  # the file has them
        before = history.last or {"step": first, "seconds": 0.0}
        since = 0 if history.last else first
        saving = Saving(checkpoints, options.checkpoint_every) if checkpoints else None
        rows = (recorder or (lambda types: MemoryRecorder(types, 1.0)))(recorded.types) if recorded else None
        training = TrainingLoop(
            program,
            steps,
            step=first,
            state=state,
            saving=saving,
            options=options,
            key=key,
            data=data,
            read_ahead=read_ahead,
            history=history,
            writer=writer,
            recorded=recorded,
            recorder=rows,
            evaluate=evaluate,
            on_step=on_step,
            counter=counter,
        )
        training.run(_progress(steps, samples_a_step, before) if progress else None)
    seconds = history.last["seconds"] if history.last else 0.0
    recording = rows.recording() if rows else NOTHING_RECORDED
    return Fit(training.state, list(history), seconds, samples_a_step * (training.step - since), recording)


def _progress(steps: int, samples_a_step: int, after: Mapping[str, float]) -> Progress:
    each = counted(samples_a_step, "sample")
    return Progress(steps, each, lambda rate: f"{rate * samples_a_step:,.0f} samples/s", after=after)
