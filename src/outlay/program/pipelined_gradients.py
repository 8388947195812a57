"""Run the scans of a step that is no `train_step` as pipelines: of what it differentiates, or else of the step itself.

The step is traced three times. First for its batch, to see what it differentiates with respect to which leaves of the
state, perhaps cast before; then for a microbatch; and then with pipelines in what it differentiates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from outlay.core.jax_source import is_traced
from outlay.core.jax_tracing import fresh_traces, intercept_vjp, run_jaxpr
from outlay.core.paths import flatten_paths
from outlay.program.modes import Step
from outlay.program.passes import Planned
from outlay.program.pipelined_function import (
    PipelinedFunction,
    check_scans,
    microbatch,
    num_microbatches,
    pipelines_of,
)
from outlay.program.stacked_scans import Stack, Stacks, named_stacks


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
        whole, results, differentiated = self._traced(state, batch)
        of_few, _, of_few_differentiated = self._traced(state, few)
        if not differentiated:
            function = PipelinedFunction(self._planned, whole, of_few, stacks, self._pipelines)
            check_scans([function], self._pipelines)
            return jax.tree.unflatten(jax.tree.structure(results), function(jax.tree.leaves((state, batch))))
        stacks_of = _stacks_of(differentiated, named_stacks(whole, stacks))

        def pipelined(number: int, jaxpr: Any) -> PipelinedFunction:
            of_few = of_few_differentiated[number]
            return PipelinedFunction(self._planned, jaxpr, of_few, stacks_of[number], self._pipelines)

        check_scans([pipelined(*each) for each in enumerate(differentiated)], self._pipelines)
        number = iter(range(len(differentiated)))

        def change(function: Callable[..., Any], *primals: Any) -> Callable[..., Any]:
            jaxpr, structure = _trace(function, primals)
            run = pipelined(next(number), jaxpr)
            return lambda *args: jax.tree.unflatten(structure, run(jax.tree.leaves(args)))

        with intercept_vjp(change, with_arguments=True):
            return self._step(state, batch)

    def _traced(self, state: Any, batch: Any) -> tuple[Any, Any, list[Any]]:
        """Trace the step; return its trace and results, and the traces of what it differentiates, in their order.

        There, what goes into each has a name.
        """
        seen: list[Any] = []
        named: list[Any] = []  # JAX drops an operation whose result nobody references

        def change(function: Callable[..., Any], *primals: Any) -> Callable[..., Any]:
            jaxpr, structure = _trace(function, primals)
            for place, value in enumerate([*jaxpr.consts, *jax.tree.leaves(primals)]):
                if is_traced(value):
                    named.append(checkpoint_name(value, _name(len(seen), place)))
            seen.append(jaxpr)
            return lambda *args: jax.tree.unflatten(
                structure, run_jaxpr(jaxpr, jax.tree.leaves(args), lambda _, values, bind: bind(*values))
            )

        # A jitted step would otherwise be traced only the first time.
        with fresh_traces(), jax.check_tracer_leaks(False), intercept_vjp(change, with_arguments=True):
            jaxpr, results = jax.make_jaxpr(lambda *args: self._step(*args), return_shape=True)(state, batch)
        return jaxpr, results, seen


def _trace(function: Callable[..., Any], args: Any) -> tuple[Any, Any]:
    jaxpr, results = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
    return jaxpr, jax.tree.structure(results)


def _name(number: int, place: int) -> str:
    return f"outlay: argument {place} of gradient {number}"


def _stacks_of(differentiated: Sequence[Any], named: dict[str, Stack]) -> list[Stacks]:
    return [
        [named.get(_name(number, place)) for place in range(len(jaxpr.consts) + len(jaxpr.jaxpr.invars))]
        for number, jaxpr in enumerate(differentiated)
    ]
