"""Estimate a candidate by arithmetic, before any compiler: good enough to decide what to compile first, no more.

Computing takes what the trace does (`step_work.py`), at the speeds that hardware reaches (`analysis/cost/constants`),
divided among the devices that the plan gives different work. Communication is what the textbook strategies cost: a
parameter split over an axis that also splits the batch is gathered twice and its gradient scattered once (FSDP), any
other gradient is summed over the axes of the batch (data parallelism), and a layer split over another axis sums its
activations once (Megatron). Parameters and gradients go while devices compute, and take time where they take longer.
Tokens that are split are exchanged in attention, and tokens of experts go to them and back (`exchange_cost.py`). A
pipeline takes its idle ticks longer, gathers a stage's layers for each microbatch, and sends activations on in each
tick, forward and back. Memory is the state, the batch, a gradient for each parameter, a layer that is gathered and the
activations that the trace holds at one time (`liveness.py`). Only the compiler's own figures are reported.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlay.analysis.cost.constants import Constants, constants_of, product_speed
from outlay.devices.hardware import Hardware
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.layout.plan import Plan
from outlay.search.exchange_cost import context_seconds, expert_seconds
from outlay.search.placed_work import Leaves, PlacedWork, Stages
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


def expect(work: Workload, plan: Plan, target: Target, layout: Layout, leaves: Leaves | None = None) -> Expectation:
    """Estimate a plan.

    Args:
        work: what is computed.
        plan: where state and batch live, on a mesh of the target.
        target: the hardware.
        layout: the layout that it comes from, which may have a pipeline and split the tokens of attention.
        leaves: what follows from the plan alone, if it is known.
    """
    leaves = leaves or Leaves.of(work, plan, target, layout)
    parts = PlacedWork(work, leaves, Stages.of(layout, plan.mesh))
    layers = max((leaves.num_layers(leaf) for leaf in leaves.params), default=1)
    runs, links, stages = layers * work.microbatches, leaves.links, parts.stages
    waited = _sent_of_activations(parts) + expert_seconds(plan, links, runs)
    if stages is None:
        waited += context_seconds(work, plan, layout, links, runs)
    else:
        on_stage = runs * stages.ticks / stages.repeats / stages.size
        waited += context_seconds(work, plan, layout, links, on_stage, stages.microbatches)
        waited += _between_stages(parts, stages)
    away = max(plan.host_bytes_per_device.values(), default=0)
    # What is fetched from the host comes when the activations are gone, during the optimizer's update.
    held = leaves.certain + work.constants + leaves.gradient_bytes + max(int(activation_bytes(parts)), away)
    fetching = 2 * away / target.hardware.host_link_bandwidth
    computing, sent = _computing(parts, target.hardware), _sent_of_params(parts)
    seconds = max(computing, sent) + waited + fetching
    return Expectation(seconds, held, max(1, work.num_samples), computing, sent + waited)


_BORDERS = 2.5
"""Times the activations of all microbatches lie at the border of a pipeline's layers during the backward pass: two or
three in compiled programs, as the scheduler has it (`benchmarks/screening.py`)."""


def activation_bytes(parts: PlacedWork) -> float:
    """Return the most bytes of computed values on a device at one time, besides gradients.

    What the layers keep for the backward pass lies there while a layer is at work, and while the loss is; a compiler
    takes the last layer back while it still works on the loss. What splits heads and features splits nothing of what
    goes between layers, unless the step says so.

    In one program all forward ticks of a pipeline come before the backward ones, so a stage keeps what its layers keep
    for all microbatches, and for the ticks in which it idles; the part of one tick is copied out of that. At the border
    of the layers lie the activations of all microbatches: what enters and leaves, and their gradients. What comes
    before and after is split over the stages where they divide the microbatches. With repeats, a stage has its layers
    once more, in the order in which it runs them.
    """
    layers, leaves, stages = parts.work.layers, parts.leaves, parts.stages
    residuals = layers.residuals.on(leaves.of_between, leaves.of_layers) / leaves.samples
    inside = layers.inside.on(1, leaves.of_layers) / leaves.samples
    outside = layers.outside.on(1, leaves.of_others) / leaves.samples / parts.stages_outside
    if stages is None:
        return residuals + inside + outside + leaves.gathered_bytes
    residuals *= (stages.ticks + 1) / (stages.microbatches * stages.repeats) / stages.size
    borders = _BORDERS * layers.carried / leaves.samples
    again = leaves.stage_bytes if stages.repeats > 1 else 0
    return residuals + borders + inside / stages.microbatches + outside + leaves.gathered_bytes + again


def _computing(parts: PlacedWork, hardware: Hardware) -> float:
    """Return the time in which a device computes, idle ticks included."""
    stages, leaves, known = parts.stages, parts.leaves, constants_of(hardware)
    ticks = 1.0 if stages is None else stages.ticks / (stages.microbatches * stages.repeats)
    size, times = (1, 1) if stages is None else (stages.size, stages.microbatches)
    inner, outer = parts.work.step.layers, parts.work.step.outside
    seconds = _seconds(inner, parts, hardware, known, leaves.of_layers, size, times) * ticks
    seconds += _seconds(outer, parts, hardware, known, leaves.of_others, parts.stages_outside, 1)
    # The optimizer reads and writes its state and the parameters, and reads gradients, which were written.
    updated = 2 * (leaves.state_bytes + leaves.gradient_bytes)
    return seconds + updated / hardware.memory_bandwidth / known.memory


def _seconds(
    work: Work, parts: PlacedWork, hardware: Hardware, known: Constants, of_model: float, size: int, times: int
) -> float:
    """Return the time of a part of the step on one device.

    Args:
        work: that part, on all devices together.
        parts: what is computed where.
        hardware: the kind of device.
        known: what it reaches.
        of_model: how many devices share the work on the same samples.
        size: how many stages share it besides.
        times: in how many parts each operation runs.
    """
    each = parts.leaves.samples * size
    speed = product_speed(hardware, parts.work.dtype)[0] * hardware.clock_share
    products = work.products / each / of_model / speed / known.products
    num_products = work.num_products * times / size
    if products and known.small_product:  # the shorter a product, the less of the device it fills
        products *= 1 + (known.small_product * num_products / products) ** known.small_power
    kernels = work.kernels / each / of_model / speed / known.kernels
    moved = work.moved.on(parts.leaves.of_between, of_model) / each / hardware.memory_bandwidth / known.memory
    return products + kernels + moved + work.num_launches * times / size * known.operation


def _sent_of_params(parts: PlacedWork) -> float:
    """Return the time of the exchanges of parameters and gradients."""
    work, stages, leaves, seconds = parts.work, parts.stages, parts.leaves, 0.0
    for one, payload in leaves.exchanges.items():
        # A stage has some of the layers, and takes each in every tick of every part of the batch.
        in_stage = stages if one.in_stage else None
        num_parts = work.microbatches * (1 if in_stage is None else in_stage.ticks)
        num_layers = one.num_layers / (1 if in_stage is None else in_stage.size)
        once = one.once if num_parts > 1 else ()
        each = tuple(axis for axis in one.axes if axis not in once)
        runs = num_layers * num_parts * (2 if one.kind == "all-gather" else 1)
        seconds += runs * leaves.links.seconds(one.kind, payload, each)
        seconds += leaves.links.seconds(one.kind, payload * num_layers, once)
    if stages is not None and stages.repeats > 1:
        # Stages give each other the layers that they run, and their gradients back, packed alike for each.
        packed = leaves.stage_bytes * -(-stages.repeats // stages.size) * stages.size / stages.repeats
        seconds += 2 * leaves.links.seconds("all-to-all", packed, (stages.axis,))
    return seconds


def _sent_of_activations(parts: PlacedWork) -> float:
    """Return the time in which devices that share a layer's weights add up their parts of its outputs (Megatron)."""
    stages, step, leaves = parts.stages, parts.work.step, parts.leaves
    size, parts_each = (1, 1) if stages is None else (stages.size, stages.microbatches)
    turns = 1.0 if stages is None else stages.ticks / stages.repeats
    seconds = 0.0
    for one, runs in step.layers.sums.items():
        if axes := leaves.splitting_sum(one):
            each = one.num_bytes / leaves.samples / parts_each
            seconds += runs * turns / size * leaves.links.seconds("all-reduce", each, axes)
    for one, runs in step.outside.sums.items():
        if axes := leaves.splitting_sum(one):
            each = one.num_bytes / leaves.samples / parts.stages_outside
            seconds += runs * leaves.links.seconds("all-reduce", each, axes)
    return seconds


def _between_stages(parts: PlacedWork, stages: Stages) -> float:
    """Return the time in which activations go from stage to stage, forward and back."""
    activation = parts.work.layers.carried / parts.leaves.samples / stages.microbatches
    each = parts.leaves.links.seconds("collective-permute", activation, (stages.axis,))
    return 2 * stages.ticks * parts.work.microbatches * each
