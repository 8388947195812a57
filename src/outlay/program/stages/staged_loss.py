"""The loss of a `train_step` as places of a pipeline: traced, checked, cut, with what each place is handed."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.constrain import Gradient, Sums
from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_needed_operations import constants_as_arguments, needed_for
from outlay.core.jax_source import source_line
from outlay.core.jax_tracing import replay
from outlay.core.paths import flatten_paths, under
from outlay.layout.pipelines import is_in_list
from outlay.program.gradient_splits import root_of
from outlay.program.passes import Planned
from outlay.program.pipelines.microbatched_scan import scan_problems
from outlay.program.pipelines.pipelined_function import (
    PipelinedFunction,
    check_scans,
    microbatch,
    num_microbatches,
    pipeline_error,
    pipelines_of,
)
from outlay.program.pipelines.stacked_scans import Stack, opened_to_scans, top_scans
from outlay.program.stages.added_over_parts import not_added_up, opened_calls
from outlay.program.stages.stage_cut import CutLoss
from outlay.program.stages.stage_functions import StageFunctions
from outlay.schedules.stage_schedule import StageSchedule


@dataclass(frozen=True)
class StagedLoss:
    """A loss as places of a pipeline.

    Attributes:
        schedule: who computes what when.
        cut: the loss of one microbatch, cut.
        functions: what each place computes.
        consts: the constants of its trace, as values there.
        params: the parameters, as shapes in their tree.
        paths: the path of each in the state.
        accumulate: in how many parts the batch goes through the pipeline, one after the other.
        results: what a gradient returns, as shapes: gradients, sums, and what is carried on.
        sample_shapes: the samples of one microbatch, as shapes in their tree.
    """

    schedule: StageSchedule
    cut: CutLoss
    functions: tuple[StageFunctions, ...]
    consts: list[Any]
    params: Any
    paths: tuple[str, ...]
    accumulate: int
    results: Any
    sample_shapes: Any

    @property
    def num_parts(self) -> int:
        """In how many microbatches the whole batch is taken."""
        return self.accumulate * self.schedule.num_microbatches

    @property
    def is_layer(self) -> list[bool]:
        """Which parameters are stacked layers."""
        return [*self.cut.is_stack[len(self.consts) :][: len(self.paths)]]

    @property
    def shared(self) -> list[int]:
        """The numbers, among all arguments, of the parameters besides layers that a place takes."""
        return sorted({number for each in self.functions for number in each.taken.shared})

    @property
    def others(self) -> list[int]:
        """The numbers of the constants that a place takes."""
        taken = {number for each in self.functions for number in each.taken.others}
        return sorted(number for number in taken if number < len(self.consts))

    @property
    def first_sample(self) -> int:
        """The number of the first argument that holds samples."""
        return len(self.consts) + len(self.paths)

    def hand_over(self, params: Sequence[Any]) -> tuple[list[list[Any]], list[Any]]:
        """Return what stages take of the parameters: for each repeat the layers of all stages, and shared ones."""
        repeats = self.schedule.num_repeats
        values = [*self.consts, *params, *[None] * (len(self.cut.is_stack) - self.first_sample)]
        whole = self.cut.layers(values)
        size = self.schedule.num_stages * self.cut.layers_at_once
        layers = [
            whole if repeats == 1 else [x[number * size : (number + 1) * size] for x in whole]
            for number in range(repeats)
        ]
        return layers, [values[number] for number in self.shared]

    def lowered(self) -> list[jax.stages.Lowered]:
        """Lower what each place computes, for no devices in particular."""
        each = [jaxpr for function in self.functions for jaxpr in (function.forward, function.backward)]
        return [jax.jit(functools.partial(replay, jaxpr)).lower([*jaxpr.in_avals]) for jaxpr in each]

    def split(self, samples: Any) -> list[list[Any]]:
        """Return the leaves of the samples of each microbatch, part of accumulation by part."""
        total = jax.tree.leaves(samples)[0].shape[0]
        micro = self.schedule.num_microbatches

        def part(x: Any, first: int, second: int) -> Any:
            return x[first :: self.accumulate][second::micro] if x.shape[:1] == (total,) else x

        leaves = jax.tree.leaves(samples)
        return [[part(x, a, m) for x in leaves] for a in range(self.accumulate) for m in range(micro)]


def staged(planned: Planned, gradient: Gradient, sums: Sums, params: Any, samples: Any) -> StagedLoss:
    """Return a loss as places of a pipeline.

    Raises:
        ProgramError: it cannot be cut or taken in parts; all reasons are listed.
    """
    pipelines, schedule = pipelines_of(planned), planned.schedule
    _check(pipelines, [gradient.combined(path) for path, _ in flatten_paths(params)[0]])
    taken: list[Any] = []

    def noted(params: Any, samples: Any, carried: Any) -> Any:
        taken.append((jax.tree.map(_shape, samples), jax.tree.map(_shape, carried)))
        return sums(params, samples, carried)

    results = jax.eval_shape(lambda *args: gradient(noted, *args), params, samples)
    part, carried = taken[-1]
    if jax.tree.leaves(carried):
        raise ProgramError(
            "a model state goes from microbatch to microbatch, and stages work on several at a time"
            '\n  fix: mode="auto", or layers without running statistics, such as LayerNorm'
        )
    few = microbatch(planned, part, num_microbatches(pipelines))

    def computed(params: Any, samples: Any) -> list[Any]:
        totals, _ = sums(params, samples, carried)
        return [totals["loss"], *jax.tree.leaves(totals)]

    of_all, of_few = (jax.make_jaxpr(computed)(params, each) for each in (part, few))
    root = root_of(params, planned.plan)
    paths = [under(root, path) for path, _ in flatten_paths(params)[0]]
    stacks = [Stack(frozenset([path]), 0) if path in pipelines else None for path in paths]
    stacks += [None] * len(jax.tree.leaves(samples))
    check_scans([PipelinedFunction(planned, of_all, of_few, stacks, pipelines)], pipelines)
    num_consts = len(of_few.consts)
    everything = [*[None] * num_consts, *stacks]
    whole, micro = (needed_for(constants_as_arguments(each)[0])[0] for each in (of_all, of_few))
    whole, micro = (needed_for(opened_to_scans(each, everything))[0] for each in (whole, micro))
    at = _one_scan(whole, micro, everything)
    num_places = schedule.num_stages * schedule.num_repeats
    cut = CutLoss(micro, whole, at, [stack is not None for stack in everything], num_places)
    problems = _problems(cut, schedule, num_consts + len(paths))
    if problems:
        raise pipeline_error(problems)
    is_parameter = [num_consts <= number < num_consts + len(paths) for number in range(len(everything))]
    functions, moving = [], []
    size = cut.layers_at_once
    layers = [jax.ShapeDtypeStruct((size, *var.aval.shape[1:]), var.aval.dtype) for var in cut.scanned_layers]
    for place in range(num_places):
        functions.append(StageFunctions(cut, place, layers, micro.in_avals, is_parameter, moving))
        moving = functions[-1].moved
    return StagedLoss(
        schedule,
        cut,
        tuple(functions),
        list(of_few.consts),
        jax.tree.map(_shape, params),
        tuple(paths),
        gradient.num_microbatches,
        results,
        few,
    )


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), x.dtype)


def _check(pipelines: Any, combined: Sequence[str]) -> None:
    listed = [path for path in pipelines if is_in_list(path)]
    if listed:
        what = "its layers are a list, and stages of mode placed take theirs from one stack"
        fix = 'stack the layers and scan over them (jax.lax.scan, nnx.scan, eqx.filter_vmap), or mode="auto"'
        raise pipeline_error([Problem("list of layers", path, what, fix) for path in listed])
    if set(combined) != {"sum"}:
        raise ProgramError(
            "stages of a pipeline add up gradients of microbatches, and this step takes them for each sample, or in "
            'place of values\n  fix: mode="auto", or a step without'
        )


def _one_scan(whole: Any, micro: Any, stacks: Sequence[Stack | None]) -> int:
    if [eqn.primitive for eqn in whole.jaxpr.eqns] != [eqn.primitive for eqn in micro.jaxpr.eqns]:
        pairs = zip(whole.jaxpr.eqns, micro.jaxpr.eqns, strict=False)
        eqn = next((one for one, other in pairs if one.primitive != other.primitive), whole.jaxpr.eqns[-1])
        raise ProgramError(
            f"{source_line(eqn) or 'the loss'}: the loss runs other operations for a microbatch than for the whole "
            "batch, so that it cannot be cut into stages\n"
            '  fix: do not let Python decide by the size of the batch, or mode="auto"'
        )
    scans = top_scans(micro, stacks)
    if len(scans) == 1:
        return scans[0][0]
    if scans:
        lines = [source_line(micro.jaxpr.eqns[at]) or "a scan" for at, _ in scans]
        what = f"{len(scans)} scans over layers, at {', '.join(lines)}, would be {len(scans)} pipelines"
        raise pipeline_error([Problem("several scans", lines[0], what, 'one pipeline rule, or mode="auto"')])
    what = "the scan over the layers is inside of a branch, or of a function with a derivative of its own"
    raise pipeline_error([Problem("hidden scan", "the loss", what, 'a scan of the loss itself, or mode="auto"')])


def _problems(cut: CutLoss, schedule: StageSchedule, num_fixed: int) -> list[Problem]:
    scan, at = cut.of_all.jaxpr.eqns[cut.at], source_line(cut.scan) or "a scan"
    problems = scan_problems(scan, cut.scan)
    layers, stages, repeats = scan.params["length"], schedule.num_stages, schedule.num_repeats
    if layers % cut.num_places:
        rounds = f" x {repeats} repeats" if repeats > 1 else ""
        up = math.ceil(layers / cut.num_places) * cut.num_places
        fix = f"{up} layers, or a mesh with a number of stages that divides {layers}"
        problems.append(
            Problem("uneven layers", at, f"{layers} layers do not divide into {stages} stages{rounds}", fix)
        )
    problems += cut.problems(num_fixed)
    if not problems:
        whole, few = opened_calls(cut.of_all), opened_calls(cut.jaxpr)
        scans = [place for place, eqn in enumerate(few.jaxpr.eqns) if _is_same(eqn, cut.scan)]
        for eqn, line in not_added_up(whole, few, scans[0]):
            name = eqn.primitive.name if eqn is not None else "it"
            what = f"{name} takes samples together, so that the loss of a batch is not the sum of its microbatches'"
            fix = (
                "return one loss per sample; or, with reduction=, (sum, count), metrics: what is summed, and by what "
                'the sum is divided; or mode="auto"'
            )
            problems.append(Problem("not a sum", line or "the loss", what, fix))
    return problems


def _is_same(eqn: Any, scan: Any) -> bool:
    params = eqn.params
    return eqn.primitive.name == "scan" and params["jaxpr"].jaxpr is scan.params["jaxpr"].jaxpr
