"""One part of a graph by itself: what it reads, and its step compiled alone for one device."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from outlay.core.paths import map_with_paths
from outlay.core.step_graph import CACHE, StepGraph
from outlay.execute.placed.program import PlacedProgram
from outlay.report.work.traced import TracedWork, traced_work


@dataclass(frozen=True)
class PartStep:
    """A part's step as a program of its own.

    Attributes:
        traced: what was counted in the traced step.
        compiled: the step compiled.
    """

    traced: TracedWork
    compiled: jax.stages.Compiled


def compile_part(program: PlacedProgram, name: str) -> PartStep:
    """A part's step compiled for the first of its devices, with as many rows of its state as that one holds."""
    graph: StepGraph = program.step.graph
    device = next(place.devices[0] for place in program.places if name in place.names)
    local = {leaf.path: leaf.local_shape for leaf in program.plan.state}
    state = map_with_paths(
        lambda path, leaf: jax.ShapeDtypeStruct(local[path], leaf.dtype), {name: program.state_shapes[name]}
    )[name]
    inputs = {key: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for key, leaf in program.batch_shapes.items()}
    read = jax.eval_shape(lambda cache, inputs: graph.read(name, cache, inputs), program.state_shapes[CACHE], inputs)
    step = graph.parts[name].step
    # A part has a device of its own, whatever mesh the user has set.
    with jax.set_mesh(None), warnings.catch_warnings():
        # A step may give back less state than it takes, as one that ends a count.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        lowered = jax.jit(step, donate_argnums=0).lower(_on(state, device), _on(read, device))
        compiled = lowered.compile()
        return PartStep(traced_work(jax.make_jaxpr(step)(state, read)), compiled)


def _on(tree: Any, device: jax.Device) -> Any:
    where = SingleDeviceSharding(device)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), tree)
