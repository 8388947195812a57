"""Run a traced function with pipelines in place of its scans over layers, or say why that cannot be."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.core.constrain import without_own_axes
from outlay.core.error_types import OutlayError, Problem, ProgramError
from outlay.core.jax_needed_operations import constants_as_arguments, needed_for
from outlay.core.jax_source import source_line, source_line_of_error
from outlay.core.quantities import counted, listed
from outlay.layout.pipelines import Pipeline, is_in_list
from outlay.layout.placement import dims_spec
from outlay.program.passes import Planned
from outlay.program.pipelines.circular_schedule import CircularSchedule
from outlay.program.pipelines.microbatched_scan import run_in_microbatches, scan_problems
from outlay.program.pipelines.stacked_scans import Stack, Stacks, Unpaired, run_with, scanned_leaves, scans_over
from outlay.program.place_inside import placing

if TYPE_CHECKING:
    from outlay.program.pipelines.sums_in_parts import SplitBatch
    from outlay.program.propagated_splits import Split

NAME = "pipelining"
"""The name of the pass; its note says which scans run as pipelines."""


def pipelines_of(planned: Planned) -> dict[str, Pipeline]:
    """Return the pipeline of each leaf of the state that a rule splits over stages, by path."""
    ruled: dict[str, Pipeline] = {}
    for rule in planned.layout:
        if not isinstance(rule.placement, Pipeline) or planned.mesh.shape[rule.placement.axis] == 1:
            continue
        for leaf in planned.plan.of_kind("state"):
            # A rule before may have taken a leaf out, as of the one layer of a list that is run by itself.
            is_split = any(rule.placement.axis in axes for axes in leaf.dims)
            if is_split and rule.matches(leaf.path, "state"):
                ruled.setdefault(leaf.path, rule.placement)
    return ruled


def num_microbatches(pipelines: Mapping[str, Pipeline]) -> int:
    """Return in how many parts pipelines take the batch.

    Raises:
        ProgramError: they do not agree.
    """
    numbers = sorted({each.microbatches for each in pipelines.values()})
    if len(numbers) > 1:
        raise ProgramError(
            f"pipeline rules take the batch in {' and in '.join(map(str, numbers))} microbatches\n"
            "  fix: the same number in all of them"
        )
    return numbers[0]


def microbatch(planned: Planned, samples: Any, num: int) -> Any:
    """Return a microbatch of samples, as shapes.

    Args:
        planned: the program.
        samples: a tree of arrays; those with as many entries as the first have one for each sample.
        num: the number of microbatches.

    Raises:
        ProgramError: they do not divide the samples, or the samples of a microbatch not over devices.
    """
    sizes = [x.shape[0] for x in jax.tree.leaves(samples) if x.shape]
    if not sizes:
        raise ProgramError(
            "a pipeline takes its batch in microbatches, and this batch has no dim of samples"
            "\n  fix: leave the pipeline rule out"
        )
    total, axes = sizes[0], sample_axes(planned)
    devices = math.prod(planned.mesh.shape[axis] for axis in axes)
    if stages := {each.axis for each in pipelines_of(planned).values()} & {*axes}:
        axis = min(stages)
        what = f"samples are split over {axis!r}, whose devices are the stages, and each stage takes all samples"
        problem = Problem("samples on stages", f"{axis}={planned.mesh.shape[axis]}", what, _OTHER_AXIS.format(axis))
        raise ProgramError("the layout cannot run as a pipeline:", [problem])
    if total % (num * devices):
        over = f" over {'+'.join(axes)}={devices}" if devices > 1 else ""
        fits = [n for n in range(2, total + 1) if total % (n * devices) == 0]
        # A step that accumulates takes the batch in parts, and each part in microbatches.
        parts = max((leaf.shape[0] // total for leaf in planned.plan.of_kind("batch") if leaf.shape), default=1)
        up = -(-total // (num * devices)) * num * devices * parts
        part = f", one of {parts} parts (accumulate={parts})," if parts > 1 else ""
        what = f"a batch of {total} samples{part} does not divide into {num} microbatches{over}"
        choices = f"microbatches={min(fits, key=lambda n: abs(n - num))}, or " if fits else ""
        choices += "a smaller accumulate, or " if parts > 1 else ""
        problem = Problem("uneven microbatches", f"microbatches={num}", what, f"{choices}a batch of {up} samples")
        raise ProgramError("the batch cannot go through the pipeline:", [problem])

    def one(x: Any) -> jax.ShapeDtypeStruct:
        shape = (total // num, *x.shape[1:]) if x.shape[:1] == (total,) else x.shape
        return jax.ShapeDtypeStruct(shape, x.dtype)

    return jax.tree.map(one, samples)


_OTHER_AXIS = 'outlay.data_parallel("data"), on a mesh such as outlay.mesh({}=2, data=-1)'


@contextlib.contextmanager
def tracing_microbatch(samples: Any, few: Any) -> Iterator[None]:
    """Say of an error within the block that it is one of a microbatch: for the whole batch there was none.

    Args:
        samples: the samples of the batch.
        few: those of a microbatch.

    Raises:
        ProgramError: in place of an error that is not Outlay's own.
    """
    try:
        yield
    except OutlayError:  # which says its line and cure, and all offenders
        raise
    except Exception as error:
        (num, of_few) = (next(x.shape[0] for x in jax.tree.leaves(tree) if x.shape) for tree in (samples, few))
        at = source_line_of_error(error)
        raise ProgramError(
            f"{at + ': ' if at else ''}what runs for the batch of {num} samples does not run for a microbatch of "
            f"{of_few}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}\n"
            f"  fix: take the number of samples from x.shape[0] where the model has it as a number ({num}), "
            "and keep what is no sample out of the batch; or leave the pipeline rule out"
        ) from error


def sample_axes(planned: Planned) -> tuple[str, ...]:
    """Return the axes over which XLA splits samples where the function is traced."""
    first = {leaf.dims[0] if leaf.dims else () for leaf in planned.plan.of_kind("batch")}
    axes = first.pop() if len(first) == 1 else ()
    own = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in axes if axis not in own and planned.mesh.shape[axis] > 1)


def part_axes(planned: Planned) -> dict[str, int]:
    """Return the axes whose devices may add up gradients of layers each for itself, with their sizes.

    Over these XLA splits samples, or their tokens, where the function is traced. An axis that also splits layers is
    none: each device would hold all of what it has a part of.
    """
    pipelines, own = pipelines_of(planned), jax.sharding.get_abstract_mesh().manual_axes
    of_layers = {axis for path in pipelines for axes in planned.plan[path].dims for axis in axes}
    of_batch = dict.fromkeys(axis for leaf in planned.plan.of_kind("batch") for axes in leaf.dims for axis in axes)
    axes = [axis for axis in of_batch if axis not in own and axis not in of_layers]
    return {axis: planned.mesh.shape[axis] for axis in axes if planned.mesh.shape[axis] > 1}


def argument_splits(planned: Planned, paths: Sequence[str], values: Sequence[Any]) -> list[Split]:
    """Return how arguments are split over the devices that add up gradients each for itself; empty without any.

    Args:
        planned: the program.
        paths: of each argument that is a leaf of the state, its path; empty for samples.
        values: the arguments.
    """
    sizes = part_axes(planned)
    if not sizes:
        return []
    from outlay.program.propagated_splits import split_of

    of_state = {leaf.path: leaf.dims for leaf in planned.plan.of_kind("state")}
    of_samples = {leaf.shape[1:]: leaf.dims for leaf in planned.plan.of_kind("batch")}
    dims = (
        of_state.get(path, ()) if path else of_samples.get(jnp.shape(x)[1:], ())
        for path, x in zip(paths, values, strict=True)
    )
    return [{axis: claim for axis, claim in split_of(dims_spec(one), 0).items() if axis in sizes} for one in dims]


@dataclass(frozen=True)
class PipelinedFunction:
    """A traced function whose scans over layers run as pipelines.

    Attributes:
        planned: the program.
        of_all: the function, traced for the batch.
        of_few: the same, traced for a microbatch.
        stacks: which of its arguments are stacks; or of the constants of its trace and its arguments.
        pipelines: the pipelines of all their leaves.
        splits: how its arguments, or its constants and these, are split over devices that add up gradients each for
            itself; empty without any.
    """

    planned: Planned
    of_all: Any
    of_few: Any
    stacks: Sequence[Stack | None]
    pipelines: Mapping[str, Pipeline]
    splits: Sequence[Split] = ()

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """Run it.

        Raises:
            ProgramError: a scan cannot run as a pipeline.
        """
        (of_all, consts), (of_few, _) = constants_as_arguments(self.of_all), constants_as_arguments(self.of_few)
        of_all, of_few = needed_for(of_all)[0], needed_for(of_few)[0]
        try:
            given = [
                self._over_stages(x, *atoms)
                for x, *atoms in zip([*consts, *values], of_all.jaxpr.invars, of_few.jaxpr.invars, strict=True)
            ]
            stand_in = functools.partial(self._pipelined, self._split_bodies(of_all))
            return run_with(of_all, of_few, given, self._all_stacks, stand_in, self._constrained)
        except Unpaired as error:
            at = source_line(error.eqn) if error.eqn is not None else ""
            raise ProgramError(
                f"{at + ': ' if at else ''}the loss runs other loops over its layers for a microbatch than for the "
                "whole batch, so it cannot run as a pipeline\n"
                "  fix: do not let Python decide by the size of the batch, or leave the pipeline rule out"
            ) from error

    def _split_bodies(self, of_all: Any) -> dict[int, SplitBatch]:
        """Return how the arguments of the body of each scan are split, by the scan's identity."""
        sizes = part_axes(self.planned)
        if not sizes:
            return {}
        from outlay.program.pipelines.sums_in_parts import split_bodies

        num_others = len(of_all.jaxpr.invars) - len(self.splits)
        return split_bodies(of_all, [*[{}] * num_others, *self.splits], sizes, placing(self.planned.mesh))

    def scans(self) -> list[tuple[Any, frozenset[str]]]:
        """Return the scans that run as pipelines, each with the leaves that it reads."""
        return list(scans_over(needed_for(constants_as_arguments(self.of_all)[0])[0], self._all_stacks))

    @property
    def _all_stacks(self) -> list[Stack | None]:
        """The stacks among constants and arguments."""
        num_consts = len(self.of_all.consts)
        others = [None] * (num_consts + len(self.of_all.jaxpr.invars) - len(self.stacks))
        return [*others, *self.stacks]

    def _pipelined(
        self, bodies: Mapping[int, SplitBatch], scan: Any, of_few: Any, values: list[Any], of_operands: Stacks
    ) -> list[Any]:
        paths = scanned_leaves(scan, of_operands)
        pipeline = self.pipelines[min(paths)]
        stages, layers = self.planned.mesh.shape[pipeline.axis], scan.params["length"]
        schedule = CircularSchedule(stages, pipeline.microbatches, pipeline.repeats, layers)
        at = source_line(scan) or "a scan"
        problems = scan_problems(scan, of_few)
        if layers % (stages * pipeline.repeats):
            groups = stages * pipeline.repeats
            rounds = f" x {pipeline.repeats} repeats" if pipeline.repeats > 1 else ""
            what = f"{layers} layers do not divide into {pipeline.axis}={stages} stages{rounds}"
            fix = f"{-(-layers // groups) * groups} layers, or a mesh with a number of stages that divides {layers}"
            problems.append(Problem("uneven layers", at, what, fix))
        if pipeline.repeats > 1 and pipeline.microbatches < stages:
            what = f"{pipeline.microbatches} microbatches go round {pipeline.repeats} times through {stages} stages: "
            what += "the first would be back before the last has entered"
            problems.append(Problem("too few microbatches", at, what, f"microbatches={stages} or more, or repeats=1"))
        if problems:
            raise pipeline_error(problems)
        is_of_list = any(one.is_of_list for one in of_operands if one is not None)
        kind = "list of" if is_of_list else "scan over"
        notes = self.planned.notes.get(NAME, "").splitlines()
        note = f"{pipeline.in_words(stages)}; the {kind} {layers} layers at {at}"
        self.planned.notes[NAME] = "\n".join(dict.fromkeys([*notes, note]))  # a step may be traced several times
        values = [
            self._as_in_state(x, stack) if stack is not None and stack.is_of_list else x
            for x, stack in zip(values, of_operands, strict=True)
        ]
        axes, place = sample_axes(self.planned), placing(self.planned.mesh)
        num_parts = math.prod(self.planned.mesh.shape[axis] for axis in axes)
        given = scan, of_few, values, schedule, pipeline.axis, place, axes, num_parts
        return run_in_microbatches(*given, bodies.get(id(scan)))

    def _over_stages(self, x: Any, whole: Any, few: Any) -> Any:
        """Split samples over the stages too, outside of the layers, where stages would all compute the same."""
        spec = self._with_stages(P(*[P.UNCONSTRAINED] * whole.aval.ndim), whole.aval.shape, few.aval.shape)
        return x if spec is None else placing(self.planned.mesh)(x, spec)

    def _constrained(self, constraint: Any, of_few: Any, x: Any) -> Any:
        """Return a value that the program places, its samples over the stages too; None if that cannot be."""
        sharding = constraint.params["sharding"]
        if not isinstance(sharding, NamedSharding):
            return None
        if sharding.memory_kind != NamedSharding(sharding.mesh, P()).memory_kind:  # not the one that it has by itself
            return None
        own = P(*sharding.spec, *[None] * (x.ndim - len(sharding.spec)))
        spec = self._with_stages(own, x.shape, of_few.outvars[0].aval.shape)
        return None if spec is None else placing(self.planned.mesh)(x, spec)

    def _with_stages(self, spec: P, whole: Sequence[int], few: Sequence[int]) -> P | None:
        """Return a spec with the stages behind the axes of samples; None if they do not divide them, or have no place.

        Args:
            spec: the spec, with an entry for each dim.
            whole: the shape for the batch.
            few: the shape for a microbatch.
        """
        mesh, axes = self.planned.mesh, sample_axes(self.planned)
        stages = {each.axis for each in self.pipelines.values()}
        dims = [dim for dim, sizes in enumerate(zip(whole, few, strict=True)) if len({*sizes}) > 1]
        if len(stages) > 1 or len(dims) != 1 or num_microbatches(self.pipelines) % mesh.shape[min(stages)]:
            return None
        (dim,), over = dims, (*axes, min(stages))
        taken = {axis for one in (*spec[:dim], *spec[dim + 1 :]) for axis in spec_axes(one)}
        own = {axis for axis in spec_axes(spec[dim]) if mesh.shape[axis] > 1}
        is_free = spec[dim] is P.UNCONSTRAINED or own <= {*axes}
        if not is_free or taken & {*over} or whole[dim] % math.prod(mesh.shape[axis] for axis in over):
            return None
        return P(*spec[:dim], over, *spec[dim + 1 :])

    def _as_in_state(self, x: jax.Array, stack: Stack) -> jax.Array:
        """Keep stacked leaves of a list split as in the state, so that one exchange takes them to their stages."""
        leaves = [self.planned.plan[path] for path in stack.paths]
        if len({leaf.dims for leaf in leaves}) > 1 or x.shape[1:] != leaves[0].shape:
            return x
        return placing(self.planned.mesh)(x, without_own_axes(P(None, *dims_spec(leaves[0].dims))))


def spec_axes(entry: Any) -> tuple[str, ...]:
    """Return the axes of one entry of a spec."""
    if entry is None or entry is P.UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def check_scans(functions: Sequence[PipelinedFunction], pipelines: Mapping[str, Pipeline]) -> None:
    """Raise if leaves of pipelines are read by no scan, by two, or by one of several rules."""
    read: dict[str, list[str]] = {path: [] for path in pipelines}
    problems: list[Problem] = []
    for scan, paths in (scan for function in functions for scan in function.scans()):
        at = source_line(scan) or "a scan"
        for path in paths:
            read[path].append(at)
        if len({pipelines[path] for path in paths}) > 1:
            what = f"it scans over leaves of different pipeline rules: {listed(sorted(paths))}"
            problems.append(Problem("two pipelines", at, what, "one rule for all leaves of a stack"))
    problems += _problems_of_reading(read)
    if problems:
        raise pipeline_error(problems)


def pipeline_error(problems: Sequence[Problem]) -> ProgramError:
    """Return the error with these problems."""
    return ProgramError(f"{counted(len(problems), 'problem')} with the pipeline of the layout:", problems)


def _problems_of_reading(read: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    unread = [path for path, lines in read.items() if not lines]
    if unread:
        them = "it" if len(unread) == 1 else "them"
        what = f"no scan reads {them} layer by layer along dim 0, so nothing would run as a pipeline"
        fix = "run the layers by jax.lax.scan over the stack, or give the leaves a spec instead of a pipeline"
        if any(map(is_in_list, unread)):
            fix = f"run layers that are a list by x = outlay.layers(blocks, x); {fix}"
        yield Problem("no scan", listed(unread), what, fix)
    for lines in sorted({tuple(lines) for lines in read.values() if len(lines) > 1}):
        shared = [path for path, others in read.items() if tuple(others) == lines]
        what = f"{len(lines)} scans read the same layers, at {', '.join(dict.fromkeys(lines))}"
        yield Problem("two scans", listed(shared), what, "scan over each stack once, or leave the pipeline rule out")
