"""Trace what a recipe computes, once per set of options: shapes, FLOPs, values held. No devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType

from outlay.core.attention_calls import AttentionCall, current_attend
from outlay.core.context_values import within
from outlay.core.jax_attention import taking_calls
from outlay.core.jax_compat import PlannedDevice, planned_device
from outlay.core.jax_kernels import holding_missed_kernels
from outlay.core.jax_tracing import operations
from outlay.core.paths import flatten_paths
from outlay.core.traced_flops import count_flops
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.program.abstract import Traced, abstract_init, abstract_inputs, abstract_step, over_arrays
from outlay.program.modes import Mode
from outlay.program.trace_on_mesh import in_context
from outlay.search.liveness import Between, LayerMemory, layer_memory
from outlay.search.step_work import StepWork, step_work


@dataclass(frozen=True)
class Workload:
    """A step and its inputs as shapes.

    Attributes:
        state: the state.
        batch: the batch.
        traced: what the step constrains by name.
        flops: operations of a step on all devices together; 0 if the step has collectives of its own.
        stacked: lengths of the loops in the step, which are the first dims of stacked layers.
        dtype: what most matrix products are computed in.
        microbatches: the number of microbatches.
        constants: bytes of the arrays that the step closes over, replicated on every device.
        attention: the calls of attention, as shapes, each kind once.
        layers: what its loop over layers holds.
        step: what it computes and moves.
    """

    state: Any
    batch: Any
    traced: Traced
    flops: float
    stacked: frozenset[int]
    dtype: str
    microbatches: int = 1
    constants: int = 0
    attention: tuple[AttentionCall, ...] = ()
    layers: LayerMemory = field(default_factory=LayerMemory)
    step: StepWork = field(default_factory=StepWork)

    @property
    def num_samples(self) -> int:
        """The first dim of the batch; 0 if its leaves have no common one."""
        sizes = {leaf.shape[0] if leaf.shape else 0 for leaf in jax.tree.leaves(self.batch)}
        return sizes.pop() if len(sizes) == 1 else 0

    @functools.cached_property
    def shapes(self) -> object:
        """What a plan depends on: the shapes of state and batch, and all that the step names and constrains."""
        trees = (self.state, self.batch, self.traced.intermediates)
        named = tuple((path, leaf.shape, str(leaf.dtype)) for tree in trees for path, leaf in flatten_paths(tree)[0])
        return named, tuple(map(str, self.traced.specs)), tuple(self.traced.required_names)


def workload(
    step: Callable[[Any, Any], Any],
    init: Callable[[Any], Any],
    inputs: Any,
    mesh: MeshSpec,
    *,
    mode: Mode = "auto",
    microbatches: int = 1,
    target: Target | None = None,
) -> Workload:
    """Trace a step for a mesh that need not exist.

    Args:
        step: the step.
        init: creates the state.
        inputs: an example batch.
        mesh: names and sizes of axes, which the model may name.
        mode: how the step is executed.
        microbatches: how many microbatches the step takes its batch in.
        target: the hardware, whose kernel for attention is then part of the trace; None for plain JAX.
    """
    step, init = over_arrays(step, init)
    names, sizes = zip(*mesh.axes, strict=True)
    abstract = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
    enter = functools.partial(jax.sharding.use_abstract_mesh, abstract)
    state, _ = in_context(enter, lambda: abstract_init(init), whatever_fails=True)
    batch = abstract_inputs(inputs)
    calls: dict[tuple[Any, ...], AttentionCall] = {}
    recording = within(current_attend, functools.partial(_record, calls))
    # What runs without a kernel is said of the programs that are compiled.
    with recording, taking_calls(), within(planned_device, _device_of(target)), holding_missed_kernels():
        traced, _ = in_context(enter, lambda: abstract_step(step, state, batch, mode))
    jaxpr = traced.jaxpr
    # A step with collectives of its own means nothing on whole arrays, so its work cannot be counted.
    if traced.runs_per_shard:
        return Workload(state, batch, traced, 0.0, frozenset(), "float32", microbatches)
    stacks = {leaf.shape[0] for _, leaf in flatten_paths(state)[0] if leaf.ndim > 1}
    held = layer_memory(jaxpr, _shapes(state), stacks)
    return Workload(
        state,
        batch,
        traced,
        count_flops(jaxpr),
        frozenset(scan_lengths(jaxpr)),
        product_dtype(jaxpr) or "float32",
        microbatches,
        sum(const.nbytes for const in jaxpr.consts if hasattr(const, "nbytes")),
        tuple(calls.values()),
        held,
        step_work(jaxpr, _shapes(state), stacks, Between(held.shapes)),
    )


def _device_of(target: Target | None) -> PlannedDevice | None:
    """Return a GPU as the trace asks for it; of other hardware attention is traced block by block."""
    capability = target.hardware.compiler.get("compute_capability") if target is not None else None
    if target is None or capability is None:
        return None
    return PlannedDevice("gpu", target.hardware.device_kinds[0], ".".join(map(str, capability)))


def _record(calls: dict[tuple[Any, ...], AttentionCall], call: AttentionCall) -> None:
    """Keep a call of attention as shapes, and leave it to its function."""
    given = (call.query, call.key, call.value, call.segment_ids)
    query, key, value, segments = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), given)
    shapes = (call.name, query.shape, key.shape, str(query.dtype), call.causal, call.window)
    calls[shapes] = replace(call, query=query, key=key, value=value, segment_ids=segments)


def _shapes(state: Any) -> set[tuple[int, ...]]:
    """Return the shapes of leaves, and of one layer of stacked ones; scalars are left out."""
    shapes = {tuple(leaf.shape) for _, leaf in flatten_paths(state)[0] if leaf.shape}
    return shapes | {shape[1:] for shape in shapes if len(shape) > 1}


def scan_lengths(jaxpr: Any) -> set[int]:
    """Return the lengths of all loops with a known length: the first dims of stacked layers.

    >>> scan_lengths(jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, y: (c + y, y), 0.0, x))(jnp.ones(8)))
    {8}
    """
    return {eqn.params["length"] for eqn in operations(jaxpr, "scan")}


def product_dtype(jaxpr: Any) -> str | None:
    """Return the dtype in which most FLOPs of matrix products are computed; None without products.

    >>> product_dtype(jax.make_jaxpr(jnp.dot)(jnp.ones((4, 4), jnp.bfloat16), jnp.ones((4, 4), jnp.bfloat16)))
    'bfloat16'
    """
    by_dtype: dict[str, int] = {}
    for eqn in operations(jaxpr, "dot_general"):
        left = eqn.invars[0].aval
        by_dtype[str(left.dtype)] = by_dtype.get(str(left.dtype), 0) + math.prod(left.shape)
    return max(by_dtype, key=lambda dtype: by_dtype[dtype]) if by_dtype else None
