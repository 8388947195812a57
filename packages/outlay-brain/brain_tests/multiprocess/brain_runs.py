"""What is run in any number of processes: a graph that is not a Brain, and a Brain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from tests.unit.program import waves

import outlay
from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.decoders import ExponentialIntegrator
from outlay.brain.delays import N2NDelays
from outlay.brain.encoders import TopologicalLinearSpiker
from outlay.brain.initializers import NormalizedSparseUniform
from outlay.brain.learning_rules.zenke import ZenkeRule
from outlay.brain.neuron import Neuron
from outlay.brain.somas.leaky import AdaptiveLeakySoma
from outlay.brain.synapses import LinearSynapses
from outlay.graph.graph_loop import GraphLoop
from outlay.layout.strategies import by_rows

Placement = dict[str, int | tuple[int, ...]]
Run = tuple[GraphLoop, Callable[[Any], Any], dict[str, np.ndarray]]
NUM_STEPS = 100


def _waves() -> Run:
    graph_loop = waves.graph_loop(far=3)
    return graph_loop, waves.init_of(graph_loop.graph), waves.inputs()


def _brain() -> Run:
    """Every kind of module of the recorded model, with neurons that inhibit and excite each other."""
    spiker = TopologicalLinearSpiker(
        tau=30.0, cd=2.0, max_freq=200.0, glue=False, mins=-1.0, maxs=1.0, resolution=32, sigma=1 / 8
    )
    modules = {
        "spiker": spiker,
        "neurons": Neuron(
            units=62,
            inhibitory_rate=0.2,
            soma=AdaptiveLeakySoma(resistance=8.0),
            synapses=LinearSynapses(NormalizedSparseUniform(density=0.2)),
            delays=N2NDelays(max_delay=8.0),
            learning_rule=ZenkeRule(),
        ),
        "integrator": ExponentialIntegrator(num_outputs=2, saturation_freq=50.0, tau=20.0),
    }
    wires = [
        ("spiker:spikes", "neurons:in_spikes"),
        ("neurons:out_spikes", "neurons:in_spikes"),
        ("neurons:out_spikes", "integrator:spikes"),
    ]
    brain = Brain(
        modules,
        [Connection("inputs:drive", "spiker:signal"), *(Connection(*wire) for wire in wires)],
        inputs={"drive": (4,)},
        outputs={"action": "integrator:signal"},
    )
    drive = np.random.default_rng(0).uniform(-1, 1, (NUM_STEPS, 4)).astype(np.float32)
    graph_loop = GraphLoop(brain.graph, record=("neurons:out_spikes",))
    return graph_loop, brain.init, {"drive": drive}


RUNS: dict[str, Callable[[], Run]] = {"waves": _waves, "brain": _brain}
PROCESSES = {"by-neuron waves": 3, "by-neuron brain": 2, "by-module waves": 3, "by-module brain": 2}
"""In how many processes each runs. Three that compile a Brain take long, and exchange rows as those of the waves do."""


def by_neuron_program(run: Run) -> tuple[outlay.Program, dict[str, np.ndarray]]:
    """Over all devices of the job."""
    graph_loop, init, inputs = run
    mesh = outlay.mesh(neurons=jax.device_count())
    return outlay.program(graph_loop, init, inputs, layout=by_rows("neurons"), mesh=mesh, mode="manual"), inputs


PLACES: dict[str, Placement] = {
    # Of six devices, two in each process: b has two of one process, and what was recorded of it is split evenly over
    # them; a has one in each of two processes.
    "waves": {"source": 0, "a": (1, 2), "b": (2, 3), "sum": 5},
    # Three in each process: neurons in both.
    "brain": {"spiker": 0, "neurons": (2, 3), "integrator": 4},
}


def by_module_program(run: Run) -> tuple[outlay.Program, dict[str, np.ndarray]]:
    """Each part on devices of its own, of one process or of several."""
    graph_loop, init, inputs = run
    [places] = [places for places in PLACES.values() if places.keys() == graph_loop.graph.parts.keys()]
    layout, mesh = outlay.by_module(places), outlay.mesh("devices=-1")
    return outlay.program(graph_loop, init, inputs, layout=layout, mesh=mesh, mode="placed"), inputs


PROGRAMS = {"by-neuron": by_neuron_program, "by-module": by_module_program}


def on_one_device(run: Run, start: Any) -> Any:
    """State and outputs on one device of this process, on the host, from a state on the host."""
    graph_loop, init, inputs = run
    mesh = outlay.mesh(devices=jax.local_devices()[:1], all=1)
    program = outlay.program(graph_loop, init, inputs, layout=waves.WHOLE, mesh=mesh)
    return jax.device_get(program(outlay.arrays.put(start, program.plan, mesh), inputs))
