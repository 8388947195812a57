"""Run scans over layers as pipelines, where a rule of the layout says so (`outlay.layout.pipeline`).

What is differentiated is traced for the batch and for one microbatch, and run again with a pipeline in place of each
scan that reads leaves of such a rule; of a step that differentiates nothing, the step itself. Whatever else is computed
stays as it is. A `train_step` says what it differentiates; in any other step, `jax.grad` and its relatives do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from outlay.core.constrain import Gradient, Sums, current_runner
from outlay.core.context_values import within
from outlay.core.error_types import Problem, ProgramError
from outlay.core.paths import flatten_paths, under
from outlay.core.quantities import counted
from outlay.layout.pipelines import Pipeline, is_in_list
from outlay.program.gradient_splits import root_of
from outlay.program.modes import Step
from outlay.program.passes import Planned
from outlay.program.pipelines.pipelined_function import (
    PipelinedFunction,
    argument_splits,
    check_scans,
    microbatch,
    num_microbatches,
    pipelines_of,
    tracing_microbatch,
)
from outlay.program.pipelines.stacked_scans import Stack


def wrap(step: Step, planned: Planned) -> Step:
    """Wrap a step so that scans over the layers of pipeline rules run as pipelines.

    Raises:
        ProgramError: while it is traced: no scan reads such leaves, or one that cannot run as a pipeline.
    """

    @functools.wraps(step, updated=())
    def pipelined(state: Any, batch: Any) -> Any:
        if any(map(is_in_list, pipelines_of(planned))):
            from outlay.models.layers import scan_over_lists

            with scan_over_lists():
                return run(state, batch)
        return run(state, batch)

    def run(state: Any, batch: Any) -> Any:
        if planned.traced.sums_over_batch:
            with within(current_runner, _runner(planned, current_runner.get())):
                return step(state, batch)
        from outlay.program.pipelines.pipelined_gradients import StepWithPipelines

        return StepWithPipelines(step, planned).run(state, batch)

    return pipelined


def check(planned: Planned) -> None:
    """Raise for pipelines where XLA does not place values inside the step."""
    if planned.is_placed_by_xla:
        _check_cuts(planned)
        return
    rules = [rule for rule in planned.layout if isinstance(rule.placement, Pipeline)]
    where = f"mode {planned.mode}" if planned.mode != "auto" else "a mesh with explicit axes"
    what = f"a pipeline is for mode auto on automatic axes; this is {where}"
    problems = [Problem("not here", rule.written, what, 'mode="auto", or leave the rule out') for rule in rules]
    raise ProgramError(f"{counted(len(rules), 'rule')} of the layout cannot be applied here:", problems)


def _check_cuts(planned: Planned) -> None:
    """Raise for stages of unequal layers, which one XLA program cannot have."""
    problems = [
        Problem(
            "unequal stages",
            rule.written,
            f"{rule.placement}: in one XLA program all stages compute the same",
            'mode="placed", in which each stage is a program of its own, or leave cut out',
        )
        for rule in planned.layout
        if isinstance(rule.placement, Pipeline) and rule.placement.cut != "equal"
    ]
    if problems:
        raise ProgramError(f"{counted(len(problems), 'rule')} of the layout cannot be applied in mode auto:", problems)


def _runner(planned: Planned, around: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return what takes the gradients of sums whose layers run as a pipeline, in the way of the passes around."""

    def run(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
        root, pipelines = root_of(params, planned.plan), pipelines_of(planned)

        @functools.wraps(sums)
        def pipelined(*args: Any) -> Any:
            params, samples, carried = args
            paths = [under(root, path) for path, _ in flatten_paths(params)[0]]
            paths += [""] * len(jax.tree.leaves(samples))
            paths += [under("model_state", path) for path, _ in flatten_paths(carried)[0]]
            stacks = [Stack(frozenset([path]), 0) if path in pipelines else None for path in paths]
            few = microbatch(planned, samples, num_microbatches(pipelines))
            of_all, results = jax.make_jaxpr(sums, return_shape=True)(*args)
            with tracing_microbatch(samples, few):
                of_few = jax.make_jaxpr(sums)(params, few, carried)
            splits = argument_splits(planned, paths, jax.tree.leaves(args))
            function = PipelinedFunction(planned, of_all, of_few, stacks, pipelines, splits)
            check_scans([function], pipelines)
            return jax.tree.unflatten(jax.tree.structure(results), function(jax.tree.leaves(args)))

        return gradient(pipelined, params, samples) if around is None else around(gradient, pipelined, params, samples)

    return run
