"""The memory of a candidate by arithmetic: state, batch, gradients, and the activations that the trace holds."""

from __future__ import annotations

import math

from outlay.core.sizes import num_bits
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.plan import Plan
from outlay.search.mesh_links import size_of
from outlay.search.placed_work import PlacedWork, Stages, axes_of

GRADIENT_BYTES = 4
"""`outlay.train_step` sums gradients in float32."""


def certain_bytes(plan: Plan) -> int:
    """Return what a device holds throughout a step: its pieces of the batch, and of the state not on the host."""
    return sum(leaf.bytes_per_device for leaf in plan if leaf.kind != "intermediate" and leaf.stored != "host")


def gradient_bytes(plan: Plan, params: tuple[LeafPlan, ...]) -> int:
    """Return the bytes of a device's gradients, placed as the layout says or like their parameters."""
    placed = {leaf.path.removeprefix("grads."): leaf for leaf in plan.of_kind("intermediate") if leaf.is_split}
    where = [placed.get(leaf.path.removeprefix("params."), leaf) for leaf in params]
    return sum(math.prod(leaf.local_shape) * GRADIENT_BYTES for leaf in where)


_BORDERS = 2.5
"""Times the activations of all microbatches lie at the border of a pipeline's layers during the backward pass: two or
three in compiled programs, as the scheduler has it (`benchmarks/screening.py`)."""


def activation_bytes(parts: PlacedWork) -> float:
    """Return the most bytes of computed values on a device at one time, besides gradients.

    What the layers keep for the backward pass lies there while a layer is at work, and while the loss is; a compiler
    takes the first layer back while it still works on the loss. What splits heads and features splits nothing of what
    goes between layers, unless the step says so.
    """
    layers, samples = parts.work.layers, parts.samples
    if parts.stages is not None:
        return _of_stages(parts, parts.stages)
    kept = layers.residuals.on(parts.between, parts.of_layers)
    inside = layers.inside.on(1, parts.of_layers) / samples + _gathered(parts)
    return kept / samples + inside + layers.outside.on(1, parts.of_others) / samples


def _of_stages(parts: PlacedWork, stages: Stages) -> float:
    """Return the same for a device of a pipeline.

    In one program all forward ticks come before the backward ones, so a stage keeps what its layers keep for all
    microbatches, and for the ticks in which it idles; the part of one tick is copied out of that. At the border of the
    layers lie the activations of all microbatches: what enters and leaves, and their gradients. What comes before and
    after is split over the stages where they divide the microbatches. With repeats, each tick keeps its layers.
    """
    layers, samples = parts.work.layers, parts.samples
    turns = stages.microbatches * stages.repeats
    of_a_stage = layers.residuals.on(parts.between, parts.of_layers) / samples / stages.size
    residuals = of_a_stage * (stages.ticks + 1) / turns
    borders = _BORDERS * layers.carried / samples
    inside = layers.inside.on(1, parts.of_layers) / samples / stages.microbatches + _gathered(parts)
    outside = layers.outside.on(1, parts.of_others) / samples / parts.stages_outside
    held = sum(leaf.bytes_per_device for leaf in parts.in_layers)
    again = held / stages.repeats * stages.ticks if stages.repeats > 1 else 0
    return residuals + borders + inside + outside + again


def _gathered(parts: PlacedWork) -> float:
    """Return the bytes of a layer's parameters that are gathered to compute with them."""
    width, elements = num_bits(parts.work.dtype) / 8, 0.0
    for leaf in parts.in_layers:
        if (axes := axes_of(leaf)) & {*parts.batch_axes} - {*parts.plan.expert_axes}:
            whole = math.prod(leaf.shape) / parts.stacked(leaf)
            elements += whole / size_of(parts.plan.mesh, axes - {*parts.batch_axes} - parts.stage_axes)
    return elements * width
