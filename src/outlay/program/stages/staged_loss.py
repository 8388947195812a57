"""The loss of a `train_step` as places of a pipeline: traced, checked, cut, with what each place is handed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.constrain import Gradient, Sums, without_own_axes
from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_needed_operations import constants_as_arguments, needed_for
from outlay.core.jax_source import source_line
from outlay.core.jax_tracing import replay
from outlay.core.paths import flatten_paths, under
from outlay.layout.pipelines import Pipeline, is_in_list
from outlay.layout.placement import Dims, dims_spec
from outlay.models.layers import scan_over_lists
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
    tracing_microbatch,
)
from outlay.program.pipelines.stacked_scans import Stack, opened_to_scans, top_scans
from outlay.program.place_inside import Place, placing
from outlay.program.stages.added_over_parts import not_added_up, opened_calls
from outlay.program.stages.layer_counts import flops_of, layer_counts, prices_of, problems_of_counts
from outlay.program.stages.stage_cut import CutLoss, is_unrolled
from outlay.program.stages.stage_functions import StageFunctions
from outlay.schedules.stage_schedule import StageSchedule
from outlay.schedules.stage_times import TimedSchedule


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
        layer_dims: how each operand of the scan that is layers lies in the state; None if that is not known.
        axis: the mesh axis of the stages.
        place: constrains where a value lives.
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
    layer_dims: tuple[Dims | None, ...]
    axis: str
    place: Place

    @property
    def num_parts(self) -> int:
        """In how many microbatches the whole batch is taken."""
        return self.accumulate * self.schedule.num_microbatches

    @property
    def is_layer(self) -> list[bool]:
        """Which parameters are stacked layers."""
        return [*self.cut.is_stack[len(self.consts) :][: len(self.paths)]]

    @functools.cached_property
    def shared(self) -> list[int]:
        """The numbers, among all arguments, of the parameters besides layers that a place takes."""
        return sorted({number for each in self.functions for number in each.taken.shared})

    @functools.cached_property
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
        values = [*self.consts, *params, *[None] * (len(self.cut.is_stack) - self.first_sample)]
        whole = [self._as_in_state(*each) for each in zip(self.cut.layers(values), self.layer_dims, strict=True)]
        layers = [
            [
                piece
                for each in zip(whole, self.layer_dims, strict=True)
                for piece in self.cut.in_pieces(self._of_repeat(repeat, *each))
            ]
            for repeat in range(self.schedule.num_repeats)
        ]
        return layers, [values[number] for number in self.shared]

    @functools.cached_property
    def pieces(self) -> list[list[int]]:
        """Which of the arrays of layers, as stages are given them, each place has."""
        most = self.cut.most_pieces
        first = range(0, len(self.layer_dims) * most, most)
        return [
            [at + n for at in first for n in range(self.cut.num_pieces(place))] for place in range(len(self.functions))
        ]

    def _as_in_state(self, x: Any, dims: Dims | None) -> Any:
        """Keep layers that stages do not have in equal parts split as in the state, so that one exchange sends them."""
        return x if dims is None or self.axis in dims[0] else self.place(x, without_own_axes(dims_spec(dims)))

    def _of_repeat(self, repeat: int, x: Any, dims: Dims | None) -> Any:
        """Return the layers of all stages for one repeat, each stage with as many rows as the largest place has."""
        num = self.schedule.num_stages
        rows = [self.cut.rows(place) for place in range(repeat * num, (repeat + 1) * num)]
        if self.cut.is_equal:
            return x if self.schedule.num_repeats == 1 else x[rows[0].start : rows[-1].stop]
        parts = [x[each] for each in rows]
        widths = [[(0, self.cut.most_layers - len(part)), *[(0, 0)] * (x.ndim - 1)] for part in parts]
        padded = [jnp.pad(*each) for each in zip(parts, widths, strict=True)]
        return self._as_in_state(jnp.concatenate(padded), dims)

    @property
    def timed(self) -> TimedSchedule:
        """What each action takes, in FLOPs."""
        forward, backward = zip(*map(flops_of, self.functions), strict=True)
        return TimedSchedule(self.schedule, forward, backward)

    def in_words(self) -> Iterator[str]:
        """Say how many layers each place has, and what that makes of the schedule; and draw it."""
        timed, (least, most) = self.timed, (min(self.cut.counts), max(self.cut.counts))
        each = f"{most} each" if least == most else " + ".join(map(str, self.cut.counts))
        idle = f"{100 * timed.bubble:.1f} % of the time is idle"
        yield f"{self.cut.num_layers} layers, {each}; by the FLOPs of stages {idle}"
        yield str(timed)

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
    _check([gradient.combined(path) for path, _ in flatten_paths(params)[0]])
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

    with scan_over_lists() if any(map(is_in_list, pipelines)) else contextlib.nullcontext():
        of_all = jax.make_jaxpr(computed)(params, part)
        with tracing_microbatch(part, few):
            of_few = jax.make_jaxpr(computed)(params, few)
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
    is_stack, (rule, *_) = [stack is not None for stack in everything], pipelines.values()
    # Of one layer each, to be priced.
    cut = CutLoss(micro, whole, at, is_stack, (1, 1, 1))
    problems = _problems(cut, rule, schedule, num_consts + len(paths))
    if problems:
        raise pipeline_error(problems)
    is_parameter = [num_consts <= number < num_consts + len(paths) for number in range(len(everything))]
    counts = layer_counts(rule, cut.num_layers, schedule, lambda: prices_of(_functions(cut, is_parameter)))
    cut = replace(cut, counts=counts, unrolled=is_unrolled(cut.scan, max(counts)))
    dims = _dims_of_layers(planned, cut, dict(zip(micro.jaxpr.invars[num_consts:], paths, strict=False)))
    return StagedLoss(
        schedule,
        cut,
        _functions(cut, is_parameter),
        list(of_few.consts),
        jax.tree.map(_shape, params),
        tuple(paths),
        gradient.num_microbatches,
        results,
        few,
        dims,
        rule.axis,
        placing(planned.mesh),
    )


def _functions(cut: CutLoss, is_parameter: Sequence[bool]) -> tuple[StageFunctions, ...]:
    functions, moving = [], []
    for place, size in enumerate(cut.counts):
        in_front = () if cut.unrolled else (size,)
        layers = [
            jax.ShapeDtypeStruct((*in_front, *var.aval.shape[1:]), var.aval.dtype)
            for var in cut.scanned_layers
            for _ in range(cut.num_pieces(place))
        ]
        functions.append(StageFunctions(cut, place, layers, cut.jaxpr.in_avals, is_parameter, moving))
        moving = functions[-1].moved
    return tuple(functions)


def _dims_of_layers(planned: Planned, cut: CutLoss, path_of: Mapping[Any, str]) -> tuple[Dims | None, ...]:
    """Return how operands of the scan that are layers lie in the state: as the leaf, or as leaves of their shape."""
    leaves = [planned.plan[path] for path in pipelines_of(planned)]
    known: list[Dims | None] = []
    for var in cut.scanned_layers:
        shape = tuple(var.aval.shape)
        leaf = planned.plan[path_of[var]] if var in path_of else None
        leaf = leaf or next((one for one in leaves if shape in (one.shape, (shape[0], *one.shape))), None)
        of_one = leaf is not None and leaf.shape != shape
        known.append(None if leaf is None else ((), *leaf.dims) if of_one else leaf.dims)
    return tuple(known)


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), x.dtype)


def _check(combined: Sequence[str]) -> None:
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


def _problems(cut: CutLoss, rule: Pipeline, schedule: StageSchedule, num_fixed: int) -> list[Problem]:
    scan, at = cut.of_all.jaxpr.eqns[cut.at], source_line(cut.scan) or "a scan"
    problems = scan_problems(scan, cut.scan)
    problems += problems_of_counts(rule, cut.num_layers, schedule, at)
    problems += cut.problems(num_fixed)
    if not problems:
        whole, few = opened_calls(cut.of_all), opened_calls(cut.jaxpr)
        scans = [place for place, eqn in enumerate(few.jaxpr.eqns) if _is_same(eqn, cut.scan)]
        first: dict[str, str] = {}  # the first operation of each line: what follows it is no sum either
        for eqn, line in not_added_up(whole, few, scans[0]):
            first.setdefault(line or "the loss", eqn.primitive.name if eqn is not None else "it")
        for line, name in first.items():
            what = f"{name} takes samples together, so that the loss of a batch is not the sum of its microbatches'"
            fix = (
                "return one loss per sample; or, with reduction=, (sum, count), metrics: what is summed, and by what "
                'the sum is divided; or mode="auto"'
            )
            problems.append(Problem("not a sum", line, what, fix))
    return problems


def _is_same(eqn: Any, scan: Any) -> bool:
    params = eqn.params
    return eqn.primitive.name == "scan" and params["jaxpr"].jaxpr is scan.params["jaxpr"].jaxpr
