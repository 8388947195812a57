"""Take the gradients of a `train_step` stage by stage, microbatch after microbatch, in one trace.

That is what mode placed means for a pipeline (`placed_stages.py`), where each function of a stage is a program of its
own devices, and several microbatches are on their way. Here they follow each other in a loop, through the same
functions and into the same sums; a proof replays that in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.constrain import Gradient, Sums, constrain, with_runner
from outlay.program.modes import Step
from outlay.program.passes import Planned
from outlay.program.stages.scheduled_run import Values, run_scheduled
from outlay.program.stages.stage_calls import CALLS_OF, CalledStages, StageSums, at_least_float32, zeros
from outlay.program.stages.staged_loss import StagedLoss, staged
from outlay.schedules.stage_schedule import StageSchedule


def wrap(step: Step, planned: Planned) -> Step:
    """Wrap a step so that the gradients of its sums are taken stage by stage."""

    def run(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
        loss = staged(planned, gradient, sums, params, samples)
        leaves = jax.tree.leaves(params)
        (layers, shared), back = jax.vjp(loss.hand_over, leaves)
        num_stages = loss.schedule.num_stages
        one = _of_one_microbatch(loss.schedule)

        def add(sums: list[Any], part: Values) -> tuple[list[Any], None]:
            sums_of: dict[int, Any] = {stage: StageSums(*each) for stage, each in enumerate(sums)}
            run_scheduled(one, _InOneTrace(loss, layers, shared, [part]), [0], sums_of)
            return [(each.layers, each.common) for each in sums_of.values()], None

        parts = [jnp.stack(each) for each in zip(*loss.split(samples), strict=True)]
        start = zeros(loss)
        sums_of, _ = jax.lax.scan(add, [(start.layers, start.common)] * num_stages, parts)
        of_layers = [
            [jnp.concatenate(each) for each in zip(*(of_repeats[repeat] for of_repeats, _ in sums_of), strict=True)]
            for repeat in range(loss.schedule.num_repeats)
        ]
        joined = [jnp.concatenate(each) for each in zip(*(common for _, common in sums_of), strict=True)]
        return results_of(loss, back, (layers, shared), of_layers, joined)

    return with_runner(step, run)


def _of_one_microbatch(schedule: StageSchedule) -> StageSchedule:
    """Return the same actions for the first microbatch alone."""
    actions = [action for action in schedule.actions if action.microbatch == 0]
    return StageSchedule(actions, schedule.num_stages, 1, schedule.num_repeats, name=schedule.name)


def results_of(
    loss: StagedLoss, back: Any, handed: Any, of_layers: list[list[Any]], common: Sequence[Any]
) -> tuple[Any, Any, Any]:
    """Return gradients, sums and what is carried on, from what stages have added up.

    Args:
        loss: the loss.
        back: the derivative of what hands parameters over.
        handed: what it handed over.
        of_layers: the gradients of the layers of all stages, for each repeat.
        common: the gradients of shared parameters and the sums of the loss, of each stage (stages, ...).
    """
    layers, shared = handed
    of_layers = [[piece for x in each for piece in loss.cut.in_pieces(x)] for each in of_layers]
    summed = [jnp.sum(x, axis=0) for x in common]
    cotangents = (
        [[x.astype(like.dtype) for x, like in zip(*each, strict=True)] for each in zip(of_layers, layers, strict=True)],
        [x.astype(like.dtype) for x, like in zip(summed, shared, strict=False)],
    )
    (leaves,) = back(cotangents)
    grads = jax.tree.unflatten(jax.tree.structure(loss.params), [at_least_float32(x) for x in leaves])
    _, totals, carried = loss.results
    totals = jax.tree.unflatten(jax.tree.structure(totals), summed[len(shared) :])
    return constrain(grads, "grads", optional=True), totals, carried


class _InOneTrace(CalledStages):
    """Computes places of a pipeline where they are traced."""

    def __init__(self, loss: StagedLoss, layers: Any, shared: Values, parts: list[Values]) -> None:
        super().__init__(loss)
        self._layers, self._parts = layers, parts
        self._shared = dict(zip(loss.shared, shared, strict=True))

    def runs(self, stage: int) -> bool:
        """Return that this trace has every stage."""
        return True

    def arguments(self, place: int, part: int) -> Values:
        """Return what a place takes for its forward pass, before what moves."""
        loss, taken = self._loss, self._loss.functions[place].taken
        repeat, stage = divmod(place, loss.schedule.num_stages)
        size = loss.cut.most_layers // loss.cut.most_pieces
        first, last = stage * size, stage * size + loss.cut.counts[place] // loss.cut.num_pieces(place)
        layers = [self._layers[repeat][number][first:last] for number in loss.pieces[place]]
        others = [*loss.consts, *[None] * len(loss.paths), *self._parts[part]]
        return [*layers, *(self._shared[number] for number in taken.shared), *(others[n] for n in taken.others)]

    def call(self, name: str, place: int, *values: Any) -> Any:
        """Run one of a place's calls."""
        return CALLS_OF[name](self._loss, place, *values)

    def send(self, values: Values, place: int, *, back: bool) -> Values:
        """Return the values: there is one place for all."""
        return values
