"""A workload as a layout places it: its pipeline, the axes that split its batch, and what shares the work."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from outlay.devices.mesh_info import MeshInfo
from outlay.layout.layout import Layout
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.plan import Plan
from outlay.search.mesh_links import MeshLinks, size_of
from outlay.search.step_work import Sum
from outlay.search.workload import Workload


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
class PlacedWork:
    """What the time and the memory of a candidate depend on.

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

    @functools.cached_property
    def splitting(self) -> frozenset[str]:
        """The axes that split any parameter."""
        return frozenset(axis for leaf in self.params for axis in axes_of(leaf))

    def splitting_sum(self, one: Sum) -> tuple[str, ...]:
        """Return the axes over which a sum is split, besides those of the batch."""
        axes = (
            axis for shape, dims in one.weights for dim in dims for axis in self._of_weights.get(shape, {}).get(dim, ())
        )
        return tuple(sorted({*axes} - {*self.batch_axes} - self.stage_axes))

    @functools.cached_property
    def _of_weights(self) -> dict[tuple[int, ...], dict[int, tuple[str, ...]]]:
        """The axes that split each dim of a layer's weights, by the shape of these."""
        found = {}
        for leaf in self.params:
            skip = 1 if self.stacked(leaf) > 1 else 0
            found[leaf.shape[skip:]] = dict(enumerate(leaf.dims[skip:]))
        return found

    @functools.cached_property
    def in_layers(self) -> tuple[LeafPlan, ...]:
        """The parameters of the layers: those of the stages if there are any, else those that are stacked."""
        if self.stages is not None:
            return tuple(leaf for leaf in self.params if self.stages.axis in axes_of(leaf))
        return tuple(leaf for leaf in self.params if self.stacked(leaf) > 1)

    @property
    def stage_axes(self) -> frozenset[str]:
        """The axis of the pipeline."""
        return frozenset() if self.stages is None else frozenset([self.stages.axis])

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
        return self._sharing(tuple(leaf for leaf in self.params if leaf not in self.in_layers))

    @functools.cached_property
    def stages_outside(self) -> int:
        """How many stages share what is outside of the layers: all, where they divide the microbatches."""
        stages = self.stages
        return stages.size if stages is not None and stages.microbatches % stages.size == 0 else 1

    @functools.cached_property
    def between(self) -> int:
        """Over how many devices what goes between layers is split, besides those with other samples."""
        of_batch, mesh = {*self.batch_axes}, self.plan.mesh
        named = [leaf for leaf in self.plan.of_kind("intermediate") if leaf.shape in self.work.layers.shapes]
        return max((size_of(mesh, axes_of(leaf) - of_batch) for leaf in named), default=1)

    def _sharing(self, leaves: tuple[LeafPlan, ...]) -> float:
        """Return how many devices share the work of some parameters on the same samples, averaged over them."""
        apart = (*self.batch_axes, self.stages.axis) if self.stages is not None else self.batch_axes
        sizes = [(math.prod(leaf.shape), size_of(self.plan.mesh, other_axes(leaf, apart))) for leaf in leaves]
        each = sum(elements / split for elements, split in sizes)
        return sum(elements for elements, _ in sizes) / each if each else 1.0


def axes_of(leaf: LeafPlan) -> set[str]:
    """Return the mesh axes that split a leaf."""
    return {axis for axes in leaf.dims for axis in axes}


def other_axes(leaf: LeafPlan, batch_axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes that split a leaf and not the batch."""
    return tuple(sorted(axes_of(leaf) - set(batch_axes)))
