"""Check the arguments of a training run before it starts: steps, batches, evaluations, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from outlay.core.error_types import ProgramError
from outlay.program.multi_step import check_can_repeat
from outlay.program.program import Program
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.data import shapes_of
from outlay.train.example_sources import in_numbers
from outlay.train.patience import Patience


def check_is_program(program: object) -> None:
    """Raise if what is to be trained is something else, such as the step alone.

    Raises:
        ProgramError: it is.
    """
    if not isinstance(program, Program):
        raise ProgramError(
            f"outlay.fit takes a program, and this is a {type(program).__name__}"
            "\n  fix: outlay.fit(outlay.program(step, init, batch, layout=layout, mesh=mesh), batches, steps=100, "
            "key=jax.random.key(0))"
        )


def check_steps(steps: int, first: int, checkpoints: Checkpoints | None, checkpoint_every: int | None) -> None:
    """Raise if there is no step to run, or no folder for the checkpoints.

    Args:
        steps: the total number of steps.
        first: the step after which the run continues.
        checkpoints: where the run saves its state.
        checkpoint_every: the number of steps between checkpoints.

    Raises:
        ProgramError: the number of steps or the interval is too small, or `checkpoints` is missing.
    """
    if steps < 1:
        raise ProgramError(f"steps={steps}: a run needs at least 1 step")
    if steps < first:
        raise ProgramError(f"steps={steps}: the run to continue has already taken {first} steps")
    if checkpoints is not None and not isinstance(checkpoints, Checkpoints):
        given = f"'{checkpoints}'" if isinstance(checkpoints, str | os.PathLike) else '"checkpoints"'
        raise ProgramError(
            f"checkpoints={checkpoints!r:.60}: that is no folder of checkpoints yet\n  fix: outlay.Checkpoints({given})"
        )
    lack, fix = "no folder for checkpoints", "checkpoints=outlay.Checkpoints(folder)"
    _check_interval("checkpoint_every", checkpoint_every, "checkpoints", checkpoints, lack, fix)


def _check_interval(name: str, every: int | None, events: str, needed: Any, lack: str, fix: str) -> None:
    """Raise if events cannot happen every so many steps: the interval is too small, or what they need is missing."""
    if every is not None and every < 1:
        raise ProgramError(f"{name}={every}: {events} must be at least 1 step apart")
    if every is not None and needed is None:
        raise ProgramError(f"{name}={every}, but {lack}\n  fix: {fix}")


def check_evaluations(evaluate: Any, evaluate_every: int | None, patience: Patience | None) -> None:
    """Raise if there is no evaluation function, or no evaluations for patience to count.

    Args:
        evaluate: the evaluation function, if any.
        evaluate_every: the number of steps between evaluations.
        patience: the rule for early stopping, if any.

    Raises:
        ProgramError: the interval is too small, `evaluate` is missing, or patience watches a metric of evaluations that
            never happen.
    """
    fix = "pass evaluate=lambda program, state: {...} to outlay.fit or to the recipe"
    _check_interval("evaluate_every", evaluate_every, "evaluations", evaluate, "no evaluation function", fix)
    if patience and patience.is_of_evaluations and evaluate_every is None:
        raise ProgramError(
            f"patience watches {patience.metric!r}, but training is evaluated only after its last step"
            "\n  fix: evaluate_every=100 (--evaluate-every 100), or another number of steps"
        )


def check_steps_per_call(program: Program, data: Any, steps_per_call: int) -> None:
    """Raise if one call cannot run several steps.

    Args:
        program: the training program.
        data: batches by global step.
        steps_per_call: the number of steps in a call.

    Raises:
        ProgramError: the program cannot be scanned, or the data has batches of several shapes.
    """
    if steps_per_call < 1:
        raise ProgramError(f"steps_per_call={steps_per_call}: a call needs at least 1 step")
    num_shapes = len({shapes_of(batch) for batch in (program.batch_shapes, *getattr(data, "buckets", ()))})
    if steps_per_call > 1 and num_shapes > 1:
        raise ProgramError(
            f"steps_per_call={steps_per_call}: the steps of a call need batches of one shape, but the data has"
            f" {num_shapes}\n  fix: leave out steps_per_call"
        )
    if steps_per_call > 1:
        check_can_repeat(program)


def check_data(data: Any, steps: int) -> None:
    """Raise if the data cannot be indexed by global step, or is known to have too few batches.

    Args:
        data: the training data.
        steps: the total number of steps.

    Raises:
        ProgramError: the data has no `__getitem__`, or ends before the last step.
    """
    if not hasattr(data, "__getitem__"):
        raise ProgramError(
            f"data[step] must return the batch of a global step, so that a run can continue where it stopped; a "
            f"{type(data).__name__} has no indexing\n  fix: {_by_step(data)}"
        )
    if isinstance(data, Sequence) and len(data) < steps:
        raise ends_early(len(data), steps)


def _by_step(data: Any) -> str:
    if hasattr(data, "dataset"):
        return in_numbers(data)
    return "list(data) if it fits in memory, outlay.TrainData, or a class with __getitem__(self, step)"


def ends_early(num_batches: int, steps: int) -> ProgramError:
    """Build the error for data with too few batches.

    Args:
        num_batches: the number of batches in the data.
        steps: the total number of steps.
    """
    fewer = f"--steps {num_batches} (steps={num_batches}), or " if num_batches else ""
    return ProgramError(
        f"the data ends early: {steps} steps need data[0] to data[{steps - 1}], but there is no data[{num_batches}]\n"
        f"  fix: {fewer}data that repeats, such as data[step % len(data)]"
    )
