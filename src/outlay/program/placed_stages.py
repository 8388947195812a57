"""Mode placed for a pipeline: each stage's functions are programs of its own devices, run in the order of a schedule.

A step is begun and ended by programs of all devices: the first takes the batch apart, the last is what the step does
with gradients, such as the optimizer. In between, each device sees its own pieces of the state, and only what a
microbatch carries moves, from a stage to its neighbour. Python dispatches, and waits for nothing. Each process has the
programs of the stages of its own devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jax.sharding import Mesh

from outlay.arrays.put import put
from outlay.core.constrain import Gradient, Sums, with_runner
from outlay.core.error_types import ProgramError
from outlay.core.jax_tracing import fresh_traces, run_jaxpr
from outlay.layout.layout import Layout
from outlay.program.abstract import between_users_nodes, named
from outlay.program.compiler_options import RequestedOptions, compile_with
from outlay.program.modes import Step
from outlay.program.one_step import OneStep
from outlay.program.passes import Pass, passes_of, wrapped
from outlay.program.pipelines.pipelined_function import pipelines_of
from outlay.program.staged_gradients import results_of
from outlay.program.stages.scheduled_run import run_scheduled
from outlay.program.stages.stage_calls import StageSums
from outlay.program.stages.stage_checks import check_mesh, check_step, schedule_for
from outlay.program.stages.stage_meshes import joined_of
from outlay.program.stages.stage_programs import StagePrograms
from outlay.program.stages.staged_loss import StagedLoss, staged

_OWN = "staged_gradients"


class PlacedStages(OneStep):
    """Executes a step with a pipeline in mode placed; see the protocol `Execution`.

    Args:
        step: the step, from `outlay.train_step`.
        init: makes its state.
        inputs: an example batch.
        layout: the rules.
        mesh: the mesh.
        options: compiler options.
        schedule: in which order stages work: a `StageSchedule` or the name of one.

    Attributes:
        peak_held: the most microbatches, each repeat counted, that each stage held in the last call.
    """

    def __init__(
        self,
        step: Step,
        init: Callable[[Any], Any],
        inputs: Any,
        layout: Layout,
        mesh: Mesh,
        options: RequestedOptions,
        schedule: Any,
    ) -> None:
        check_mesh(mesh, layout)
        super().__init__(step, init, inputs, layout, mesh, "placed", options, donate=True)
        check_step(self.planned, named(step))
        chosen = schedule_for(schedule, pipelines_of(self.planned), mesh)
        self.planned = replace(self.planned, schedule=chosen)
        passes = passes_of(self.planned)
        own = next(number for number, one in enumerate(passes) if one.name == _OWN)
        self._before, self._after = passes[:own], passes[own + 1 :]
        self.peak_held: tuple[int, ...] = ()
        with self.context(), fresh_traces():
            self._trace_begin()
        self.planned.notes["pipelining"] = "\n".join([str(chosen).split("\n")[0], *self._loss.in_words()])

    def _check_traced(self) -> None:
        """Check nothing yet: stages are traced once there is a schedule."""

    def compiled_trace(self) -> None:
        """Return None: there are several programs."""

    def lowered_trace(self) -> None:
        """Return None, likewise."""

    def _trace_begin(self) -> None:
        """Trace what the first program hands to the stages, and what each of them computes."""
        losses: list[tuple[StagedLoss, Any]] = []

        def run(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
            loss = staged(self.planned, gradient, sums, params, samples)
            layers, shared = loss.hand_over(jax.tree.leaves(params))
            consts = [loss.consts[number] for number in loss.others]
            losses.append((loss, (layers, shared, consts, loss.split(samples))))
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), loss.results)

        step = self._running(run, self._before)

        def begin(state: Any, batch: Any) -> Any:
            losses.clear()
            step(state, batch)
            if len(losses) != 1:
                raise ProgramError(
                    f"{named(self.step)} takes {len(losses)} gradients, and stages compute those of one loss"
                    '\n  fix: an optimizer that asks for no others, or mode="auto"'
                )
            return losses[0][1]

        self._begin, self._handed = jax.make_jaxpr(begin, return_shape=True)(self.state_shapes, self.batch_shapes)
        # Without the values of its trace, which has ended.
        self._loss = replace(losses[0][0], consts=[None] * len(losses[0][0].consts))

    def _running(self, run: Callable[..., Any], before: Sequence[Pass]) -> Step:
        """Return the step with its passes, and among them what takes the gradients of its sums."""
        step = with_runner(wrapped(self.step, self.planned, before), run)
        return wrapped(step, self.planned, self._after)

    def _end(self, state: Any, batch: Any, of_layers: Any, common: Any) -> Any:
        """Run the step with the gradients that the stages have added up."""

        def run(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
            loss = self._loss
            if loss.cut.makes_layers:  # of values of this trace, perhaps
                loss = staged(self.planned, gradient, sums, params, samples)
            handed, back = jax.vjp(loss.hand_over, jax.tree.leaves(params))
            return results_of(loss, back, handed, of_layers, common)

        # What changes the sums themselves finds them where they are traced once more.
        return self._running(run, self._before if self._loss.cut.makes_layers else [])(state, batch)

    @functools.cached_property
    def _programs(self) -> StagePrograms:
        (axis,) = {each.axis for each in pipelines_of(self.planned).values()}
        return StagePrograms(self._loss, self.planned, axis)

    def lower(self) -> tuple[jax.stages.Lowered, ...]:
        """Lower all programs; compile each whose results others take as they lie."""
        programs = self._programs
        state, batch = self.planned.shardings()
        where = programs.shardings_of_handed(self._handed)
        num_state = len(jax.tree.leaves(self.state_shapes))
        self._forwarded = _forwarded(self._begin, [*jax.tree.leaves(state)], jax.tree.leaves(where), num_state)
        own = [number for number, source in enumerate(self._forwarded) if source is None]

        def begin(state: Any, batch: Any) -> list[Any]:
            results = run_jaxpr(self._begin, jax.tree.leaves((state, batch)), lambda _, values, bind: bind(*values))
            return [results[number] for number in own]

        leaves = jax.tree.leaves(where)
        first = jax.jit(begin, in_shardings=(state, batch), out_shardings=[leaves[number] for number in own])
        of_layers, common = programs.sums_of_all
        last = jax.jit(
            self._end,
            in_shardings=(state, batch, *(jax.tree.map(lambda x: x.sharding, each) for each in (of_layers, common))),
            out_shardings=(state, None),
            donate_argnums=0,
        )
        with self.context(), fresh_traces():
            shapes = (self.state_shapes, self.batch_shapes)
            self._lowered: dict[Any, Any] = {"begin": first.lower(*shapes)}
            self._lowered["end"] = last.lower(*shapes, of_layers, common)
        with jax.set_mesh(None):
            self._compiled: dict[Any, Any] = {}
            programs.lower(self._lowered, self._compiled, self._compile)
        return tuple(self._lowered.values())

    def compared(self, lowered: Sequence[jax.stages.Lowered]) -> Sequence[jax.stages.Lowered]:
        """Return what all processes have to have alike: programs of all devices, and what every place computes."""
        with self.context(), fresh_traces():
            return [self._lowered["begin"], self._lowered["end"], *self._loss.lowered()]

    def compile(self, lowered: Sequence[jax.stages.Lowered]) -> tuple[jax.stages.Compiled, ...]:
        """Compile all programs."""
        with jax.set_mesh(None):
            for name, one in zip(self._lowered, lowered, strict=True):
                if name not in self._compiled:
                    self._compiled[name] = self._compile(one)
        return tuple(self._compiled[name] for name in self._lowered)

    def _compile(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        compiled, self._options = compile_with(lowered, self.compiler_options, self._mesh.devices.flat[0])
        return compiled

    def runner(self, compiled: Sequence[jax.stages.Compiled]) -> Callable[[Any, Any], Any]:
        """Return what dispatches a step."""
        programs = dict(zip(self._lowered, compiled, strict=True))
        return between_users_nodes(functools.partial(self._run, programs), programs["end"])

    def _run(self, compiled: dict[Any, Any], state: Any, batch: Any) -> Any:
        if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state)):
            state = put(state, self.plan, self._mesh)  # from the host, such as one that was just read from a file
        made, leaves = iter(compiled["begin"](state, batch)), jax.tree.leaves(state)
        values = [next(made) if source is None else leaves[source] for source in self._forwarded]
        handed = jax.tree.unflatten(jax.tree.structure(self._handed), values)
        schedule, loss = self.planned.schedule, self._loss
        stages = self._programs.on_devices(compiled, *handed)
        sums = {stage: StageSums(*compiled["zeros", stage]()) for stage in self._programs.own_stages}
        micro, most = schedule.num_microbatches, [0] * schedule.num_stages
        for first in range(0, loss.num_parts, micro):
            held = run_scheduled(schedule, stages, range(first, first + micro), sums)
            most = [*map(max, most, held)]
        self.peak_held = tuple(most)
        of_layers, common = self._programs.sums_of_all
        all_layers = [
            [
                joined_of([sums[stage].layers[repeat][number] for stage in sums], like)
                for number, like in enumerate(each)
            ]
            for repeat, each in enumerate(of_layers)
        ]
        all_common = [
            joined_of([sums[stage].common[number] for stage in sums], like) for number, like in enumerate(common)
        ]
        return compiled["end"](state, batch, all_layers, all_common)


def _forwarded(begin: Any, given: Sequence[Any], where: Sequence[Any], num_state: int) -> list[int | None]:
    """Return which leaf of the state each value is that stages are handed, where it lies already as they take it."""
    numbers = {var: number for number, var in enumerate(begin.jaxpr.invars[:num_state])}
    sources: list[int | None] = []
    for atom, sharding in zip(begin.jaxpr.outvars, where, strict=True):
        number, aval = None if isinstance(atom, Literal) else numbers.get(atom), cast(Any, atom.aval)
        is_there = number is not None and sharding.is_equivalent_to(given[number], aval.ndim)
        sources.append(number if is_there else None)
    return sources
