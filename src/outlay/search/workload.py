"""What a recipe computes, traced once for each set of its options: shapes, FLOPs, values held. No devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType

from outlay.core.paths import flatten_paths
from outlay.execute.abstract import Traced, abstract_init, abstract_inputs, abstract_step
from outlay.execute.modes import Mode
from outlay.execute.own_meshes import in_context
from outlay.meshes.spec import MeshSpec
from outlay.report.work.traced import count_flops
from outlay.search.liveness import live_bytes, product_dtype, scan_lengths


@dataclass(frozen=True)
class Workload:
    """A step and its inputs as shapes.

    Attributes:
        state: the state.
        batch: the batch.
        traced: what the step constrains by name.
        flops: operations of a step, on all devices together; 0 where the step only makes sense on pieces.
        held: bytes that computed values hold at one time besides parameters and gradients, on all devices together.
        stacked: lengths of the loops in the step: the first dims of stacked layers.
        dtype: what most matrix products are computed in.
        microbatches: how many the batch is taken in.
        constants: bytes of the arrays that the step closes over, whole on every device.
    """

    state: Any
    batch: Any
    traced: Traced
    flops: float
    held: int
    stacked: frozenset[int]
    dtype: str
    microbatches: int = 1
    constants: int = 0

    @property
    def num_samples(self) -> int:
        """The first dim of the batch; 0 where its leaves have none in common."""
        sizes = {leaf.shape[0] if leaf.shape else 0 for leaf in jax.tree.leaves(self.batch)}
        return sizes.pop() if len(sizes) == 1 else 0


def workload(
    step: Callable[[Any, Any], Any],
    init: Callable[[Any], Any],
    inputs: Any,
    mesh: MeshSpec,
    *,
    mode: Mode = "auto",
    microbatches: int = 1,
) -> Workload:
    """Trace a step for a mesh that need not exist.

    Args:
        step: the step.
        init: makes the state.
        inputs: an example batch.
        mesh: names and sizes of axes, which the model may name.
        mode: how the step is executed.
        microbatches: how many microbatches the step takes its batch in.
    """
    names, sizes = zip(*mesh.axes, strict=True)
    abstract = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
    enter = functools.partial(jax.sharding.use_abstract_mesh, abstract)
    state, _ = in_context(enter, lambda: abstract_init(init))
    batch = abstract_inputs(inputs)
    traced, _ = in_context(enter, lambda: abstract_step(step, state, batch, by_hand=mode == "manual"))
    jaxpr = traced.jaxpr
    # A step with collectives of its own has no meaning on whole arrays, so there is nothing to count.
    if mode == "manual" and not traced.sums_over_batch:
        return Workload(state, batch, traced, 0.0, 0, frozenset(), "float32", microbatches)
    return Workload(
        state,
        batch,
        traced,
        count_flops(jaxpr),
        live_bytes(jaxpr, _shapes(state)),
        frozenset(scan_lengths(jaxpr)),
        product_dtype(jaxpr) or "float32",
        microbatches,
        sum(const.nbytes for const in jaxpr.consts if hasattr(const, "nbytes")),
    )


def _shapes(state: Any) -> set[tuple[int, ...]]:
    """Shapes of leaves, and of one layer of stacked ones; a scalar says nothing."""
    shapes = {tuple(leaf.shape) for _, leaf in flatten_paths(state)[0] if leaf.shape}
    return shapes | {shape[1:] for shape in shapes if len(shape) > 1}
