"""A workload as a layout places it: its pipeline, the axes that split its batch, and what shares the work."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outlay.analysis.hlo.hlo_collectives import CollectiveKind
from outlay.core.array_leaves import num_bits
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.plan import Plan
from outlay.search.mesh_links import MeshLinks, size_of
from outlay.search.step_work import Sum
from outlay.search.workload import Workload

GRADIENT_BYTES = 4
"""`outlay.train_step` sums gradients in float32."""


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


@dataclass(frozen=True)
class Exchange:
    """An exchange of parameters or of their gradients, of one layer each time.

    Attributes:
        kind: the collective.
        axes: the mesh axes that it goes over.
        once: those of them over which gradients of several parts of a batch are summed once, all layers together.
        in_stage: whether the parameters are those of a pipeline's layers.
        num_layers: how many layers exchange.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    once: tuple[str, ...] = ()
    in_stage: bool = False
    num_layers: int = 1


@dataclass(frozen=True)
class Leaves:
    """Facts of a plan's leaves, whatever the numbers of a pipeline and what is recomputed.

    Attributes:
        plan: where everything lives.
        target: the hardware.
        stage_axis: the axis of the pipeline; empty without one.
        stacked: lengths of the loops in the step, which are the first dims of stacked layers.
        between: the shapes of what goes between layers.
        dtype: what most products are computed in.
    """

    plan: Plan
    target: Target
    stage_axis: str
    stacked: frozenset[int]
    between: frozenset[tuple[int, ...]]
    dtype: str

    @classmethod
    def of(cls, work: Workload, plan: Plan, target: Target, layout: Layout) -> Leaves:
        """Return the leaves of a workload on a plan; for the arguments see `analytic_cost.expect`."""
        stages = Stages.of(layout, plan.mesh)
        return cls(plan, target, stages.axis if stages else "", work.stacked, work.layers.shapes, work.dtype)

    @functools.cached_property
    def params(self) -> tuple[LeafPlan, ...]:
        """Leaves with gradients: those below `params`, or the whole state if nothing has that name."""
        return tuple(leaf for leaf in self.plan.state if leaf.path.startswith("params.")) or self.plan.state

    @functools.cached_property
    def links(self) -> MeshLinks:
        """What times collectives."""
        return MeshLinks(self.plan.mesh, self.target)

    @functools.cached_property
    def batch_axes(self) -> tuple[str, ...]:
        """Axes of the batch: whichever dim they split, devices have their own work and sum gradients."""
        batch = self.plan.of_kind("batch")
        return tuple(dict.fromkeys(axis for leaf in batch for axes in leaf.dims for axis in axes))

    @functools.cached_property
    def in_layers(self) -> tuple[LeafPlan, ...]:
        """Parameters of the layers: the ones of stages if there are any, else stacked ones."""
        if self.stage_axis:
            return tuple(leaf for leaf in self.params if self.stage_axis in axes_of(leaf))
        return tuple(leaf for leaf in self.params if self.num_layers(leaf) > 1)

    @functools.cached_property
    def samples(self) -> int:
        """How many devices have samples or tokens of their own."""
        return size_of(self.plan.mesh, self.batch_axes)

    @functools.cached_property
    def of_layers(self) -> float:
        """How many devices share a layer's work on the same samples."""
        return self._sharing(self.in_layers)

    @functools.cached_property
    def of_others(self) -> float:
        """How many devices share the work outside of the layers on the same samples, besides stages."""
        inside = {leaf.path for leaf in self.in_layers}
        return self._sharing(tuple(leaf for leaf in self.params if leaf.path not in inside))

    @functools.cached_property
    def of_between(self) -> int:
        """Over how many devices what goes between layers is split, besides those with other samples."""
        of_batch, mesh = {*self.batch_axes}, self.plan.mesh
        named = [leaf for leaf in self.plan.of_kind("intermediate") if leaf.shape in self.between]
        return max((size_of(mesh, axes_of(leaf) - of_batch) for leaf in named), default=1)

    @functools.cached_property
    def certain(self) -> int:
        """The bytes of a device throughout a step, see `certain_bytes`."""
        return certain_bytes(self.plan)

    @functools.cached_property
    def state_bytes(self) -> int:
        """The bytes of a device's state, wherever it is kept."""
        return sum(leaf.bytes_per_device for leaf in self.plan.state)

    @functools.cached_property
    def stage_bytes(self) -> int:
        """The bytes of the parameters of a device's layers."""
        return sum(leaf.bytes_per_device for leaf in self.in_layers)

    @functools.cached_property
    def gradient_bytes(self) -> int:
        """The bytes of a device's gradients, placed as the layout says or like their parameters."""
        placed = {leaf.path.removeprefix("grads."): leaf for leaf in self.plan.of_kind("intermediate") if leaf.is_split}
        where = [placed.get(leaf.path.removeprefix("params."), leaf) for leaf in self.params]
        return sum(math.prod(leaf.local_shape) * GRADIENT_BYTES for leaf in where)

    @functools.cached_property
    def gathered_bytes(self) -> float:
        """The bytes of a layer's parameters that are gathered to compute with them."""
        return sum(size for one, size in self.exchanges.items() if one.kind == "all-gather" and one.num_layers > 1)

    @functools.cached_property
    def exchanges(self) -> dict[Exchange, float]:
        """The bytes of each exchange of parameters and gradients, of a layer: what goes alike goes together."""
        payloads: dict[Exchange, float] = {}
        for leaf in self.params:
            for one, payload in self._exchanges_of(leaf):
                if one.axes:
                    payloads[one] = payloads.get(one, 0.0) + payload
        return payloads

    def num_layers(self, leaf: LeafPlan) -> int:
        """Return how many layers a leaf has; 1 if it is not stacked."""
        return leaf.shape[0] if leaf.shape and leaf.shape[0] in self.stacked else 1

    def splitting_sum(self, one: Sum) -> tuple[str, ...]:
        """Return the axes over which a sum is split, besides axes of the batch."""
        dims = ((shape, dim) for shape, dims in one.weights for dim in dims)
        axes = {axis for shape, dim in dims for axis in self._of_weights.get(shape, {}).get(dim, ())}
        return tuple(sorted(axes - {*self.batch_axes, self.stage_axis}))

    def _exchanges_of(self, leaf: LeafPlan) -> Iterator[tuple[Exchange, float]]:
        """Yield the exchanges of one parameter and its gradient, with the bytes of a layer."""
        mesh, axes, stacked = self.plan.mesh, axes_of(leaf), self.num_layers(leaf)
        in_stage = self.stage_axis in axes
        # Tokens go to the experts over these axes, instead of parameters to tokens.
        batch_axes = tuple(axis for axis in self.batch_axes if axis not in self.plan.expert_axes or axis not in axes)
        gathered = tuple(axis for axis in batch_axes if axis in axes)
        summed = tuple(axis for axis in batch_axes if axis not in axes)
        elements = math.prod(leaf.shape) / size_of(mesh, axes - {*gathered, self.stage_axis}) / stacked
        # Casts come before gathers, where they make it smaller.
        width = min(num_bits(leaf.dtype), num_bits(self.dtype)) / 8
        yield Exchange("all-gather", gathered, (), in_stage, stacked), elements * width
        yield Exchange("reduce-scatter", gathered, (), in_stage, stacked), elements * width
        once = tuple(axis for axis in summed if axis not in self._summed_each_time)
        gradient = elements * GRADIENT_BYTES / size_of(mesh, gathered)
        yield Exchange("all-reduce", summed, once, in_stage, stacked), gradient

    @functools.cached_property
    def _summed_each_time(self) -> frozenset[str]:
        """The axes that split any parameter, or something else of the batch than its samples, such as tokens."""
        tokens = (axis for leaf in self.plan.of_kind("batch") for axes in leaf.dims[1:] for axis in axes)
        return frozenset(tokens).union(*map(axes_of, self.params))

    @functools.cached_property
    def _of_weights(self) -> dict[tuple[int, ...], dict[int, tuple[str, ...]]]:
        """Axes of each dim of a layer's weights, by the shape of these."""
        by_shape = {}
        for leaf in self.params:
            skip = 1 if self.num_layers(leaf) > 1 else 0
            by_shape[leaf.shape[skip:]] = dict(enumerate(leaf.dims[skip:]))
        return by_shape

    def _sharing(self, leaves: tuple[LeafPlan, ...]) -> float:
        """Return how many devices share the work of some parameters on the same samples, averaged over them."""
        apart = {*self.batch_axes, self.stage_axis}
        sizes = [(math.prod(leaf.shape), size_of(self.plan.mesh, axes_of(leaf) - apart)) for leaf in leaves]
        each = sum(elements / split for elements, split in sizes)
        return sum(elements for elements, _ in sizes) / each if each else 1.0


@dataclass(frozen=True)
class PlacedWork:
    """What the time and the memory of a candidate depend on.

    Attributes:
        work: what is computed.
        leaves: where everything lives.
        stages: the pipeline.
    """

    work: Workload
    leaves: Leaves
    stages: Stages | None

    @property
    def stages_outside(self) -> int:
        """How many stages share what is outside of the layers: all, where they divide the microbatches."""
        stages = self.stages
        return stages.size if stages is not None and stages.microbatches % stages.size == 0 else 1


def certain_bytes(plan: Plan) -> int:
    """Return what a device holds throughout a step: its pieces of the batch, and of the state not on the host."""
    return sum(leaf.bytes_per_device for leaf in plan if leaf.kind != "intermediate" and leaf.stored != "host")


def axes_of(leaf: LeafPlan) -> set[str]:
    """Return the mesh axes that split a leaf."""
    return {axis for axes in leaf.dims for axis in axes}
