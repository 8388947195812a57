"""Estimate a candidate by arithmetic, before any compiler: good enough to decide what to compile first, no more.

Compute is the FLOPs of the trace at the hardware's peak, divided among the devices that the plan gives different work.
Communication is what the textbook strategies cost: a parameter split over an axis that also splits the batch is
gathered twice and its gradient scattered once (FSDP), any other gradient is summed over the axes of the batch (data
parallelism), and a layer split over another axis sums its activations once (Megatron). Tokens that are split are
exchanged in attention, and tokens of experts go to them and back (`exchange_cost.py`). A pipeline takes its idle ticks
longer, gathers a stage's layers for each microbatch, and sends activations on in each tick, forward and back. Memory is
the state, the batch, a gradient for each parameter and the activations that the trace holds at one time. Fusion,
overlap and rematerialization by the real compiler are left out: only the compiler's own figures are reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from outlay.core.sizes import num_bits
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.plan import Plan
from outlay.search.exchange_cost import context_seconds, expert_seconds
from outlay.search.mesh_links import MeshLinks, size_of
from outlay.search.workload import Workload

_GRADIENT_BYTES = 4  # `outlay.train_step` sums gradients in float32


@dataclass(frozen=True)
class Expectation:
    """An estimate of one candidate, for one device and one step.

    Attributes:
        seconds: its time.
        num_bytes: its memory.
        num_samples: the examples of a step; 1 if the batch has no samples.
    """

    seconds: float
    num_bytes: int
    num_samples: int = 1

    @property
    def seconds_per_sample(self) -> float:
        """The time of one example, by which steps with different batches are compared."""
        return self.seconds / self.num_samples


@dataclass(frozen=True)
class Stages:
    """The pipeline of a layout on a mesh.

    Attributes:
        axis: the mesh axis of its stages.
        size: how many there are.
        microbatches: in how many parts they take the batch.
        ticks: how many rounds they take, in which each runs its layers, or one group of them, once.
        repeats: the groups of layers of each.
    """

    axis: str
    size: int
    microbatches: int
    ticks: int
    repeats: int

    @classmethod
    def of(cls, layout: Layout, mesh: MeshInfo) -> Stages | None:
        """Return those of a layout's first pipeline on more stages than one."""
        for rule in layout:
            pipeline: Any = rule.placement
            axis = getattr(pipeline, "stage_axis", "")
            if axis and mesh.axis_sizes.get(axis, 1) > 1:
                size = mesh.axis_sizes[axis]
                return cls(axis, size, pipeline.microbatches, pipeline.num_ticks(size), pipeline.repeats)
        return None


def expect(work: Workload, plan: Plan, target: Target, layout: Layout) -> Expectation:
    """Estimate a plan.

    Args:
        work: what is computed.
        plan: where state and batch live, on a mesh of the target.
        target: the hardware.
        layout: the layout that it comes from, which may have a pipeline and split the tokens of attention.
    """
    params = _params(plan)
    stages = Stages.of(layout, plan.mesh)
    # Whichever dim of the batch they split, samples or tokens, devices have their own work and sum gradients.
    batch_axes = tuple(dict.fromkeys(axis for leaf in plan.of_kind("batch") for axes in leaf.dims for axis in axes))
    sharing = size_of(plan.mesh, batch_axes) * _model_sharing(params, batch_axes, plan.mesh)
    peaks = target.hardware.peak_flops
    speed = peaks.get(work.dtype, max(peaks.values())) * target.hardware.clock_share
    compute = work.flops / sharing / speed
    links = MeshLinks(plan.mesh, target)
    parts = _Parts(work, plan, params, batch_axes, links, stages)
    communication = sum(_leaf_seconds(leaf, parts) for leaf in params)
    layers = max((leaf.shape[0] for leaf in params if leaf.shape and leaf.shape[0] in work.stacked), default=1)
    runs = layers * work.microbatches
    communication += context_seconds(work, plan, layout, links, runs) + expert_seconds(plan, links, runs)
    if stages is not None:
        compute *= stages.ticks / (stages.microbatches * stages.repeats)
        communication += _between_stages(parts, stages)
    away = max(plan.host_bytes_per_device.values(), default=0)
    # What is fetched from the host comes when the activations are gone, during the optimizer's update.
    computed = work.held / sharing if stages is None else _held_by_stages(parts, stages)
    during = max(int(computed), away)
    held = certain_bytes(plan) + work.constants + _gradients(plan, params) + during
    fetching = 2 * away / target.hardware.host_link_bandwidth
    return Expectation(compute + communication + fetching, held, max(1, work.num_samples))


_BORDERS = 2.5
"""Times the activations of all microbatches lie at the border of a pipeline's layers during the backward pass: two or
three in compiled programs, as the scheduler has it (`benchmarks/screening.py`)."""


def _held_by_stages(parts: _Parts, stages: Stages) -> float:
    """Return the bytes of computed values on a device of a pipeline.

    In one program all forward ticks come before the backward ones, so a stage keeps what its layers keep for all
    microbatches, and for the ticks in which it idles; the part of one tick is copied out of that. At the border of the
    layers lie the activations of all microbatches: what enters and leaves, and their gradients. What comes before and
    after is split over the stages where they divide the microbatches. With repeats, each tick keeps its layers.
    """
    layers, mesh = parts.work.layers, parts.plan.mesh
    samples = size_of(mesh, parts.batch_axes)
    in_stage = tuple(leaf for leaf in parts.params if stages.axis in _axes(leaf))
    # What splits heads and features splits nothing of what goes between layers.
    of_model = _model_sharing(in_stage, (*parts.batch_axes, stages.axis), mesh)
    turns = stages.microbatches * stages.repeats
    between = min(layers.residuals, layers.num_layers * layers.carried)
    of_a_stage = (between + (layers.residuals - between) / of_model) / samples / stages.size
    residuals = of_a_stage * (stages.ticks + 1) / turns
    borders = _BORDERS * layers.carried / samples
    inside = layers.inside / samples / of_model / stages.microbatches
    outside = layers.outside / samples / (stages.size if stages.microbatches % stages.size == 0 else 1)
    again = sum(leaf.bytes_per_device for leaf in in_stage) / stages.repeats * stages.ticks if stages.repeats > 1 else 0
    return residuals + borders + inside + outside + again


def certain_bytes(plan: Plan) -> int:
    """Return what a device holds throughout a step: its pieces of the batch, and of the state not on the host."""
    return sum(leaf.bytes_per_device for leaf in plan if leaf.kind != "intermediate" and leaf.stored != "host")


def _params(plan: Plan) -> tuple[LeafPlan, ...]:
    """Return the leaves that have gradients: those below `params`, or the whole state if nothing has that name."""
    return tuple(leaf for leaf in plan.state if leaf.path.startswith("params.")) or plan.state


def _gradients(plan: Plan, params: tuple[LeafPlan, ...]) -> int:
    """Return the bytes of a device's gradients, placed as the layout says or like their parameters."""
    placed = {leaf.path.removeprefix("grads."): leaf for leaf in plan.of_kind("intermediate") if leaf.is_split}
    where = [placed.get(leaf.path.removeprefix("params."), leaf) for leaf in params]
    return sum(math.prod(leaf.local_shape) * _GRADIENT_BYTES for leaf in where)


def _model_sharing(params: tuple[LeafPlan, ...], batch_axes: tuple[str, ...], mesh: MeshInfo) -> float:
    """Return how many devices share the work on the same samples, averaged over the parameters."""
    sizes = [(math.prod(leaf.shape), size_of(mesh, _other_axes(leaf, batch_axes))) for leaf in params]
    each = sum(elements / split for elements, split in sizes)
    return sum(elements for elements, _ in sizes) / each if each else 1.0


@dataclass(frozen=True)
class _Parts:
    """What the time of each parameter depends on.

    Attributes:
        work: what is computed.
        plan: where everything lives.
        params: the leaves that have gradients.
        batch_axes: the mesh axes that split the batch.
        links: what times collectives.
        stages: the pipeline.
    """

    work: Workload
    plan: Plan
    params: tuple[LeafPlan, ...]
    batch_axes: tuple[str, ...]
    links: MeshLinks
    stages: Stages | None

    def stacked(self, leaf: LeafPlan) -> int:
        """Return how many layers a leaf has; 1 if it is not stacked."""
        return leaf.shape[0] if leaf.shape and leaf.shape[0] in self.work.stacked else 1

    def of_layer(self, leaf: LeafPlan) -> tuple[int, ...]:
        """Return the shape of one layer of a leaf."""
        return leaf.shape[1:] if self.stacked(leaf) > 1 else leaf.shape

    def vectors(self, leaf: LeafPlan) -> float:
        """Return how many vectors pass one layer of a leaf in a step, on all devices together.

        What the trace multiplies by an array of its shape passes it forward and backward, and once more where it is
        recomputed. Without such products they are counted by FLOPs: a parameter costs six for each (two forward).
        """
        shape = self.of_layer(leaf)
        if passed := self.work.passes.get(shape, 0.0):
            alike = sum(self.stacked(other) for other in self.params if self.of_layer(other) == shape)
            return passed / (2 * alike)
        return self.work.flops / (6 * max(1, sum(math.prod(each.shape) for each in self.params)))


def _leaf_seconds(leaf: LeafPlan, parts: _Parts) -> float:
    """Return the time of the collectives for one parameter: its pieces, its gradient, its layer's activations."""
    work, links, stages, mesh = parts.work, parts.links, parts.stages, parts.plan.mesh
    stacked = parts.stacked(leaf)
    in_stage = stages if stages is not None and stages.axis in _axes(leaf) else None
    of_model = tuple(axis for axis in _other_axes(leaf, parts.batch_axes) if in_stage is None or axis != in_stage.axis)
    # Tokens go to the experts over these axes, instead of parameters to tokens.
    of_experts = tuple(axis for axis in parts.plan.expert_axes if axis in _axes(leaf))
    batch_axes = tuple(axis for axis in parts.batch_axes if axis not in of_experts)
    gathered = tuple(axis for axis in batch_axes if axis in _axes(leaf))
    summed = tuple(axis for axis in batch_axes if axis not in gathered)
    elements = math.prod(leaf.shape) / size_of(mesh, (*of_model, *of_experts)) / stacked
    # A stage has some of the layers, and takes each for every microbatch of every part of the batch.
    num_parts = work.microbatches * (1 if in_stage is None else in_stage.microbatches)
    runs = stacked * num_parts / (1 if in_stage is None else in_stage.size)
    in_place = elements * num_bits(leaf.dtype) / 8
    gradient = elements * _GRADIENT_BYTES
    seconds = 2 * runs * links.seconds("all-gather", in_place, gathered)
    seconds += runs * links.seconds("reduce-scatter", gradient, gathered)
    # Gradients of microbatches are summed once over the axes that split no parameter, all layers together.
    once = tuple(
        axis for axis in summed if work.microbatches > 1 and not any(axis in _axes(one) for one in parts.params)
    )
    each = tuple(axis for axis in summed if axis not in once)
    own = gradient / size_of(mesh, gathered)
    seconds += runs * links.seconds("all-reduce", own, each) + links.seconds("all-reduce", own * stacked, once)
    if of_model and len(leaf.shape) > 1:
        vectors = parts.vectors(leaf) / size_of(mesh, parts.batch_axes) / num_parts
        activation = vectors * _width(leaf, of_model, stacked) * num_bits(work.dtype) / 8
        seconds += runs * links.seconds("all-reduce", activation, of_model)
    return seconds


def _between_stages(parts: _Parts, stages: Stages) -> float:
    """Return the time in which activations go from stage to stage, forward and back."""
    work, num_parts = parts.work, parts.work.microbatches * stages.microbatches
    layers = [leaf for leaf in parts.params if stages.axis in _axes(leaf) and len(leaf.shape) > 1]
    vectors = max((parts.vectors(leaf) for leaf in layers), default=0.0)
    width = min((min(leaf.shape[-2:]) for leaf in layers), default=1)
    activation = vectors / size_of(parts.plan.mesh, parts.batch_axes) / num_parts * width * num_bits(work.dtype) / 8
    each = parts.links.seconds("collective-permute", activation, (stages.axis,))
    return 2 * stages.ticks * work.microbatches * each


def _width(leaf: LeafPlan, of_model: tuple[str, ...], stacked: int) -> int:
    """Return the size of the vectors at the side of a layer that is not split."""
    dims = [size for size, axes in zip(leaf.shape, leaf.dims, strict=True) if not set(axes) & set(of_model)]
    return max(dims[1:] if stacked > 1 else dims, default=1)


def _axes(leaf: LeafPlan) -> set[str]:
    return {axis for axes in leaf.dims for axis in axes}


def _other_axes(leaf: LeafPlan, batch_axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(_axes(leaf) - set(batch_axes)))
