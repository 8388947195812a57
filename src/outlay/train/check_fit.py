"""What can be told of a training run before it begins: whether it has steps, batches, evaluations, a place to save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlay.core.error_types import ProgramError
from outlay.program.program import Program
from outlay.program.several_steps import check_can_repeat
from outlay.train.buckets import shapes_of
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.patience import Patience


def check_steps(steps: int, first: int, checkpoints: Checkpoints | None, checkpoint_every: int | None) -> None:
    """Raise if there is no step to take, or nowhere to save to.

    Args:
        steps: how many steps in all.
        first: the step that the run goes on after.
        checkpoints: where it is saved.
        checkpoint_every: after how many steps.

    Raises:
        ProgramError: either.
    """
    if steps < 1:
        raise ProgramError(f"steps={steps}: a run takes 1 step or more")
    if steps < first:
        raise ProgramError(f"steps={steps}: the run to continue is after step {first} already")
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ProgramError(f"checkpoint_every={checkpoint_every}: checkpoints are 1 step or more apart")
    if checkpoint_every is not None and checkpoints is None:
        raise ProgramError(
            f"checkpoint_every={checkpoint_every} and nowhere to save to\n  fix: checkpoints=outlay.Checkpoints(folder)"
        )


def check_evaluations(evaluate: Any, evaluate_every: int | None, patience: Patience | None) -> None:
    """Raise if there is nothing to evaluate by, or nothing that patience can count.

    Args:
        evaluate: what measures the state; None for nothing.
        evaluate_every: after how many steps.
        patience: what ends training early.

    Raises:
        ProgramError: either.
    """
    if evaluate_every is not None and evaluate_every < 1:
        raise ProgramError(f"evaluate_every={evaluate_every}: evaluations are 1 step or more apart")
    if evaluate_every is not None and evaluate is None:
        raise ProgramError(
            f"evaluate_every={evaluate_every} and nothing to evaluate by"
            "\n  fix: evaluate=lambda program, state: {...}, of outlay.fit or of the recipe"
        )
    if patience and patience.is_of_evaluations and evaluate_every is None:
        raise ProgramError(
            f"patience waits for {patience.metric!r}, and training is evaluated after its last step only"
            "\n  fix: evaluate_every=100 (--evaluate-every 100), or how many steps apart you want"
        )


def check_steps_per_call(program: Program, data: Any, steps_per_call: int) -> None:
    """Raise if several steps cannot be taken in one call.

    Args:
        program: what is trained.
        data: batches by global step.
        steps_per_call: how many.

    Raises:
        ProgramError: the program cannot be repeated, or data has batches of several shapes.
    """
    if steps_per_call < 1:
        raise ProgramError(f"steps_per_call={steps_per_call}: a call takes 1 step or more")
    num_shapes = len({shapes_of(batch) for batch in (program.batch_shapes, *getattr(data, "buckets", ()))})
    if steps_per_call > 1 and num_shapes > 1:
        raise ProgramError(
            f"steps_per_call={steps_per_call}: the steps of a call take batches of one shape, and data has"
            f" {num_shapes}\n  fix: leave steps_per_call out"
        )
    if steps_per_call > 1:
        check_can_repeat(program)


def check_data(data: Any, steps: int) -> None:
    """Raise if data has no batches by global step, or is known to have too few.

    Args:
        data: what is trained on.
        steps: how many steps in all.

    Raises:
        ProgramError: either.
    """
    if not hasattr(data, "__getitem__"):
        raise ProgramError(
            f"data must give the batch of a global step as data[step], so that a run can go on where it stopped; a "
            f"{type(data).__name__} does not\n  fix: list(data) if it fits in memory, outlay.TrainData, or a class "
            "with __getitem__(self, step)"
        )
    if isinstance(data, Sequence) and len(data) < steps:
        raise ends_early(len(data), steps)


def ends_early(num_batches: int, steps: int) -> ProgramError:
    """The error for data that have no batch for a step.

    Args:
        num_batches: how many there are.
        steps: how many steps in all.
    """
    fewer = f"--steps {num_batches} (steps={num_batches}), or " if num_batches else ""
    return ProgramError(
        f"the data ends early: data[{num_batches}] is not there, and {steps} steps take data[0] to "
        f"data[{steps - 1}]\n  fix: {fewer}data that begins again, such as data[step % len(data)]"
    )
