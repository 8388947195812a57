"""Run the scans of a step that is no `train_step` as pipelines: of what it differentiates, or else of the step itself.

The step is traced three times. First for its batch, to see what it differentiates with respect to which leaves of the
state, perhaps cast before; then for a microbatch; and then with pipelines in what it differentiates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from outlay.core.jax_tracing import intercept_vjp
from outlay.core.paths import flatten_paths
from outlay.program.modes import Step
from outlay.program.passes import Planned
from outlay.program.pipelines.pipelined_function import (
    PipelinedFunction,
    argument_splits,
    check_scans,
    microbatch,
    num_microbatches,
    part_axes,
    pipelines_of,
    tracing_microbatch,
)
from outlay.program.pipelines.stacked_scans import STACKS, Stack
from outlay.program.traced_gradients import of_arguments, traced_function, traced_gradients


class StepWithPipelines:
    """A step whose scans over the layers of pipeline rules run as pipelines.

    Args:
        step: the step.
        planned: its program.
    """

    def __init__(self, step: Step, planned: Planned) -> None:
        self._step, self._planned, self._pipelines = step, planned, pipelines_of(planned)

    def run(self, state: Any, batch: Any) -> Any:
        """Run the step."""
        few = microbatch(self._planned, batch, num_microbatches(self._pipelines))
        paths = [*(path for path, _ in flatten_paths(state)[0]), *("" for _ in jax.tree.leaves(batch))]
        stacks = [Stack(frozenset([path]), 0) if path in self._pipelines else None for path in paths]
        whole, results, differentiated = traced_gradients(self._step, state, batch)
        with tracing_microbatch(batch, few):
            of_few, _, of_few_differentiated = traced_gradients(self._step, state, few)
        splits = argument_splits(self._planned, paths, jax.tree.leaves((state, batch)))
        if not differentiated:
            function = PipelinedFunction(self._planned, whole, of_few, stacks, self._pipelines, splits)
            check_scans([function], self._pipelines)
            return jax.tree.unflatten(jax.tree.structure(results), function(jax.tree.leaves((state, batch))))
        stacks_of = of_arguments(differentiated, STACKS.named(whole, stacks))
        splits_of = of_arguments(differentiated, self._named(whole, splits))

        def pipelined(number: int, jaxpr: Any) -> PipelinedFunction:
            of_few = of_few_differentiated[number]
            splits = [split or {} for split in splits_of[number]]
            return PipelinedFunction(self._planned, jaxpr, of_few, stacks_of[number], self._pipelines, splits)

        check_scans([pipelined(*each) for each in enumerate(differentiated)], self._pipelines)
        number = iter(range(len(differentiated)))

        def change(function: Callable[..., Any], *primals: Any) -> Callable[..., Any]:
            jaxpr, structure = traced_function(function, primals)
            run = pipelined(next(number), jaxpr)
            return lambda *args: jax.tree.unflatten(structure, run(jax.tree.leaves(args)))

        with intercept_vjp(change, with_arguments=True):
            return self._step(state, batch)

    def _named(self, whole: Any, splits: list[Any]) -> dict[str, Any]:
        """Return how the values are split that go into what is differentiated."""
        if not splits:
            return {}
        from outlay.program.pipelines.sums_in_parts import named_splits

        return named_splits(whole, splits, part_axes(self._planned))
