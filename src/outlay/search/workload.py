"""Trace what a recipe computes, once per set of options: shapes, FLOPs, values held. No devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params
from jax.sharding import AbstractMesh, AxisType

from outlay.core.attention_calls import AttentionCall, current_attend
from outlay.core.context_values import within
from outlay.core.jax_attention import taking_calls
from outlay.core.jax_tracing import operations
from outlay.core.paths import flatten_paths
from outlay.core.traced_flops import count_flops
from outlay.devices.mesh_spec import MeshSpec
from outlay.program.abstract import Traced, abstract_init, abstract_inputs, abstract_step, over_arrays
from outlay.program.modes import Mode
from outlay.program.trace_on_mesh import in_context
from outlay.search.liveness import LayerMemory, layer_memory, live_bytes


@dataclass(frozen=True)
class Workload:
    """A step and its inputs as shapes.

    Attributes:
        state: the state.
        batch: the batch.
        traced: what the step constrains by name.
        flops: operations of a step on all devices together; 0 if the step has collectives of its own.
        held: the most bytes of computed values at one time, besides parameters and gradients, on all devices together.
        stacked: lengths of the loops in the step, which are the first dims of stacked layers.
        dtype: what most matrix products are computed in.
        microbatches: the number of microbatches.
        constants: bytes of the arrays that the step closes over, replicated on every device.
        passes: how many vectors all products with an array of a shape take, on all devices together, by the shapes of
            parameters and of their layers.
        attention: the calls of attention, as shapes, each kind once.
        layers: what its loop over layers holds.
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
    passes: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    attention: tuple[AttentionCall, ...] = ()
    layers: LayerMemory = field(default_factory=LayerMemory)

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
) -> Workload:
    """Trace a step for a mesh that need not exist.

    Args:
        step: the step.
        init: creates the state.
        inputs: an example batch.
        mesh: names and sizes of axes, which the model may name.
        mode: how the step is executed.
        microbatches: how many microbatches the step takes its batch in.
    """
    step, init = over_arrays(step, init)
    names, sizes = zip(*mesh.axes, strict=True)
    abstract = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
    enter = functools.partial(jax.sharding.use_abstract_mesh, abstract)
    state, _ = in_context(enter, lambda: abstract_init(init), whatever_fails=True)
    batch = abstract_inputs(inputs)
    calls: dict[tuple[Any, ...], AttentionCall] = {}
    with within(current_attend, functools.partial(_record, calls)), taking_calls():
        traced, _ = in_context(enter, lambda: abstract_step(step, state, batch, mode))
    jaxpr = traced.jaxpr
    # A step with collectives of its own means nothing on whole arrays, so its work cannot be counted.
    if traced.runs_per_shard:
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
        passes(jaxpr, _shapes(state)),
        tuple(calls.values()),
        layer_memory(jaxpr, _shapes(state), {leaf.shape[0] for _, leaf in flatten_paths(state)[0] if leaf.ndim > 1}),
    )


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


def passes(jaxpr: Any, of: Container[tuple[int, ...]], repeats: int = 1) -> dict[tuple[int, ...], float]:
    """Count the vectors that products with arrays of some shapes take, loops multiplied out.

    Args:
        jaxpr: the result of `jax.make_jaxpr(f)(...)`.
        of: the shapes, such as those of parameters.
        repeats: how often it runs.

    >>> passes(jax.make_jaxpr(jnp.dot)(jnp.ones((4, 8)), jnp.ones((8, 2))), {(8, 2)})
    {(8, 2): 4.0}
    """
    counts: dict[tuple[int, ...], float] = {}
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if eqn.primitive.name == "dot_general":
            shapes = [atom.aval.shape for atom in eqn.invars]
            contracted = eqn.params["dimension_numbers"][0]
            for weight, (shape, dims) in zip(reversed(shapes), zip(shapes, contracted, strict=True), strict=True):
                if weight in of:
                    vectors = math.prod(shape) / math.prod(shape[dim] for dim in dims)
                    counts[weight] = counts.get(weight, 0.0) + repeats * vectors
                    break
        times = repeats * (eqn.params["length"] if eqn.primitive.name == "scan" else 1)
        for inner in jaxprs_in_params(eqn.params):
            for shape, count in passes(inner, of, times).items():
                counts[shape] = counts.get(shape, 0.0) + count
    return counts


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
