"""Estimate a candidate by arithmetic, before any compiler: good enough to decide what to compile first, no more.

Computing takes what the trace does (`step_work.py`), at the speeds that hardware reaches (`analysis/cost/constants`),
divided among the devices that the plan gives different work. Communication is what the textbook strategies cost: a
parameter split over an axis that also splits the batch is gathered twice and its gradient scattered once (FSDP), any
other gradient is summed over the axes of the batch (data parallelism), and a layer split over another axis sums its
activations once (Megatron). Parameters and gradients go while devices compute, and take time where they take longer.
Tokens that are split are exchanged in attention, and tokens of experts go to them and back (`exchange_cost.py`). A
pipeline takes its idle ticks longer, gathers a stage's layers for each microbatch, and sends activations on in each
tick, forward and back. Memory is in `analytic_memory.py`. Only the compiler's own figures are reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from outlay.analysis.cost.constants import Constants, constants_of, product_speed
from outlay.analysis.hlo.hlo_collectives import CollectiveKind
from outlay.core.sizes import num_bits
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.plan import Plan
from outlay.search.analytic_memory import GRADIENT_BYTES, activation_bytes, certain_bytes, gradient_bytes
from outlay.search.exchange_cost import context_seconds, expert_seconds
from outlay.search.mesh_links import MeshLinks, size_of
from outlay.search.placed_work import PlacedWork, Stages, axes_of
from outlay.search.step_work import Work
from outlay.search.workload import Workload


@dataclass(frozen=True)
class Expectation:
    """An estimate of one candidate, for one device and one step.

    Attributes:
        seconds: its time.
        num_bytes: its memory.
        num_samples: the examples of a step; 1 if the batch has no samples.
        computing: the time in which the device computes.
        sent: the time of all exchanges, if nothing overlaps.
    """

    seconds: float
    num_bytes: int
    num_samples: int = 1
    computing: float = 0.0
    sent: float = 0.0

    @property
    def seconds_per_sample(self) -> float:
        """The time of one example, by which steps with different batches are compared."""
        return self.seconds / self.num_samples


def expect(work: Workload, plan: Plan, target: Target, layout: Layout) -> Expectation:
    """Estimate a plan.

    Args:
        work: what is computed.
        plan: where state and batch live, on a mesh of the target.
        target: the hardware.
        layout: the layout that it comes from, which may have a pipeline and split the tokens of attention.
    """
    stages = Stages.of(layout, plan.mesh)
    # Whichever dim of the batch they split, samples or tokens, devices have their own work and sum gradients.
    batch_axes = tuple(dict.fromkeys(axis for leaf in plan.of_kind("batch") for axes in leaf.dims for axis in axes))
    links = MeshLinks(plan.mesh, target)
    parts = PlacedWork(work, plan, _params(plan), batch_axes, links, stages)
    layers = max((parts.stacked(leaf) for leaf in parts.params), default=1)
    runs = layers * work.microbatches
    waited = _sent_of_activations(parts)
    waited += context_seconds(work, plan, layout, links, runs) + expert_seconds(plan, links, runs)
    if stages is not None:
        waited += _between_stages(parts, stages)
    away = max(plan.host_bytes_per_device.values(), default=0)
    held = certain_bytes(plan) + work.constants + gradient_bytes(plan, parts.params)
    # What is fetched from the host comes when the activations are gone, during the optimizer's update.
    held += max(int(activation_bytes(parts)), away)
    fetching = 2 * away / target.hardware.host_link_bandwidth
    computing, sent = _computing(parts, target), _sent_of_params(parts)
    seconds = max(computing, sent) + waited + fetching
    return Expectation(seconds, held, max(1, work.num_samples), computing, sent + waited)


def _computing(parts: PlacedWork, target: Target) -> float:
    """Return the time in which a device computes, idle ticks included."""
    stages, known = parts.stages, constants_of(target.hardware)
    ticks = 1.0 if stages is None else stages.ticks / (stages.microbatches * stages.repeats)
    size, times = (1, 1) if stages is None else (stages.size, stages.microbatches)
    inner, outer = parts.work.step.layers, parts.work.step.outside
    seconds = _seconds(inner, parts, target, known, parts.of_layers, size, times) * ticks
    seconds += _seconds(outer, parts, target, known, parts.of_others, parts.stages_outside, 1)
    # The optimizer reads and writes its state and the parameters, and reads gradients, which were written.
    state = sum(leaf.bytes_per_device for leaf in parts.plan.state)
    updated = 2 * (state + gradient_bytes(parts.plan, parts.params))
    return seconds + updated / target.hardware.memory_bandwidth / known.memory


def _seconds(
    work: Work, parts: PlacedWork, target: Target, known: Constants, of_model: float, size: int, times: int
) -> float:
    """Return the time of a part of the step on one device.

    Args:
        work: that part, on all devices together.
        parts: what is computed where.
        target: the hardware.
        known: what it reaches.
        of_model: how many devices share the work on the same samples.
        size: how many stages share it besides.
        times: in how many parts each operation runs.
    """
    hardware, each = target.hardware, parts.samples * size
    speed = product_speed(hardware, parts.work.dtype)[0] * hardware.clock_share
    products = work.products / each / of_model / speed / known.products
    num_products = work.num_products * times / size
    if products and known.small_product:  # the shorter a product, the less of the device it fills
        products *= 1 + (known.small_product * num_products / products) ** known.small_power
    kernels = work.kernels / each / of_model / speed / known.kernels
    moved = work.moved.on(parts.between, of_model) / each / hardware.memory_bandwidth / known.memory
    return products + kernels + moved + work.num_launches * times / size * known.operation


def _params(plan: Plan) -> tuple[LeafPlan, ...]:
    """Return the leaves that have gradients: those below `params`, or the whole state if nothing has that name."""
    return tuple(leaf for leaf in plan.state if leaf.path.startswith("params.")) or plan.state


def _sent_of_params(parts: PlacedWork) -> float:
    """Return the time of the exchanges of parameters and gradients: those of a layer alike go together."""
    payloads: dict[tuple[CollectiveKind, tuple[str, ...], float], float] = {}
    for leaf in parts.params:
        for kind, axes, runs, payload in _exchanges(leaf, parts):
            if axes:
                payloads[kind, axes, runs] = payloads.get((kind, axes, runs), 0.0) + payload
    return sum(runs * parts.links.seconds(kind, size, axes) for (kind, axes, runs), size in payloads.items())


def _exchanges(leaf: LeafPlan, parts: PlacedWork) -> Iterator[tuple[CollectiveKind, tuple[str, ...], float, float]]:
    """Yield the exchanges of one parameter and its gradient: the kind, the axes, how often, and the bytes of each."""
    work, stages, mesh, axes = parts.work, parts.stages, parts.plan.mesh, axes_of(leaf)
    stacked = parts.stacked(leaf)
    in_stage = stages if stages is not None and stages.axis in axes else None
    # Tokens go to the experts over these axes, instead of parameters to tokens.
    batch_axes = tuple(axis for axis in parts.batch_axes if axis not in parts.plan.expert_axes or axis not in axes)
    gathered = tuple(axis for axis in batch_axes if axis in axes)
    summed = tuple(axis for axis in batch_axes if axis not in axes)
    elements = math.prod(leaf.shape) / size_of(mesh, axes - {*gathered} - parts.stage_axes) / stacked
    # A stage has some of the layers, and takes each in every tick of every part of the batch.
    num_parts = work.microbatches * (1 if in_stage is None else in_stage.ticks)
    runs = stacked * num_parts / (1 if in_stage is None else in_stage.size)
    # Casts come before gathers, where both are smaller.
    width = min(num_bits(leaf.dtype), num_bits(work.dtype)) / 8
    yield "all-gather", gathered, 2 * runs, elements * width
    yield "reduce-scatter", gathered, runs, elements * width
    # Gradients of microbatches are summed once over the axes that split no parameter, all layers together.
    own = elements * GRADIENT_BYTES / size_of(mesh, gathered)
    is_once = num_parts > 1
    once = tuple(axis for axis in summed if is_once and axis not in parts.splitting)
    yield "all-reduce", once, 1.0, own * stacked / (1 if in_stage is None else in_stage.size)
    yield "all-reduce", tuple(axis for axis in summed if axis not in once), runs, own


def _sent_of_activations(parts: PlacedWork) -> float:
    """Return the time in which devices that share a layer's weights add up their parts of its outputs (Megatron)."""
    stages, step, samples = parts.stages, parts.work.step, parts.samples
    size, times = (1, 1) if stages is None else (stages.size, stages.ticks / stages.repeats)
    of_stage = times if stages is None else stages.microbatches
    seconds = 0.0
    for one, runs in step.layers.sums.items():
        if axes := parts.splitting_sum(one):
            seconds += runs * times / size * parts.links.seconds("all-reduce", one.num_bytes / samples / of_stage, axes)
    for one, runs in step.outside.sums.items():
        if axes := parts.splitting_sum(one):
            seconds += runs * parts.links.seconds("all-reduce", one.num_bytes / samples / parts.stages_outside, axes)
    return seconds


def _between_stages(parts: PlacedWork, stages: Stages) -> float:
    """Return the time in which activations go from stage to stage, forward and back."""
    activation = parts.work.layers.carried / parts.samples / stages.microbatches
    each = parts.links.seconds("collective-permute", activation, (stages.axis,))
    return 2 * stages.ticks * parts.work.microbatches * each
