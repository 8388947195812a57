"""`outlay.fit`: train a program on batches by global step, with metrics as they arrive and evaluations in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outlay.core.public_names import called_as
from outlay.program.program import Program
from outlay.train.check_fit import (
    check_is_program,
)
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.data import Data
from outlay.train.fit_result import Fit
from outlay.train.patience import Patience
from outlay.train.recording import Recorder, RowTypes
from outlay.train.run_options import RunOptions
from outlay.train.training_loop import Evaluate, OnStep, train


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
    check_is_program(program)
    options = RunOptions(
        steps=steps,
        checkpoint_every=checkpoint_every,
        evaluate_every=evaluate_every,
        patience=patience,
        steps_per_call=steps_per_call,
        record=record,
        stride=stride,
    )
    return train(
        program,
        data,
        options,
        key=key,
        metrics_path=metrics_path,
        progress=progress,
        checkpoints=checkpoints,
        start=start,
        evaluate=evaluate,
        on_step=on_step,
        read_ahead=read_ahead,
        recorder=recorder,
    )
