"""Brains of Spark's newer files on one device and laid out: `python spark_arrangements.py` prints what differs.

A program of its own for the reason that `brain_arrangements.py` is one. The first Brain is one population of that of
Spark's tutorial of 2026-04, from its own file, which each layout also begins by itself; the second has a population for
each component that the files of later versions may name, a rule with a factor for the plain one too, and begins once:
as users compile it, its first state takes longer than its steps.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import outlay
from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.decoders import TanhIntegrator
from outlay.brain.delays import N2NDelays
from outlay.brain.encoders import LinearSpiker
from outlay.brain.initializers import LogNormal, Normal, SparseUniform
from outlay.brain.learning_rules.btsp import BTSPRule
from outlay.brain.learning_rules.hebbian import ModulatedHebbianRule, ModulatedOjaRule
from outlay.brain.learning_rules.quadruplet import ModulatedBoundedQuadrupletRule
from outlay.brain.learning_rules.zenke import ModulatedZenkeRule
from outlay.brain.neuron import Neuron
from outlay.brain.somas.composed import ComposedExponentialSoma, ComposedIzhikevichSoma, ComposedLeakySoma
from outlay.brain.synapses import LinearSynapses
from outlay.brain.traces import SignalAccumulator, SignalAverage

TUTORIAL = Path(__file__).parents[1] / "data" / "ab_brain_2026_04.scfg"
NUM_STEPS = 60
QUICK = {"xla_backend_optimization_level": 0}
FOUR = (10.0, 14.0, 12.0, 30.0)
EVERY_MECHANISM = {"cooldown": 3.0, "clamp_duration": 2.0, "threshold_delta": 5.0, "adaptation_delta": 2.0}


def tutorial() -> Brain:
    """One of its four populations, which have the same components, with the modules before and after it."""
    brain = outlay.brain.read_brain(TUTORIAL, inputs={"signal": (4,)})
    modules = {name: brain.modules[name] for name in ("spiker", "A_excitatory", "integrator")}

    def stays(end: str) -> bool:
        return end.partition(":")[0] in (*modules, "inputs")

    connections = [one for one in brain.connections if stays(one.origin) and stays(one.target)]
    return dataclasses.replace(brain, modules=modules, connections=connections)


def every_component() -> Brain:
    """One population for each, all of which read the same."""
    strong, delays = LinearSynapses(SparseUniform(300.0, 0.8, max_value=250.0)), N2NDelays(6.0, min_delay=2.0)
    populations = {
        "leaky": (ComposedLeakySoma(resistance=0.1, **EVERY_MECHANISM), strong, ModulatedHebbianRule()),
        "exponential": (
            ComposedExponentialSoma(resistance=0.5, **EVERY_MECHANISM),
            LinearSynapses(Normal(90.0, 60.0, min_value=0.0)),
            ModulatedOjaRule(),
        ),
        "izhikevich": (
            ComposedIzhikevichSoma(resistance=0.1, **EVERY_MECHANISM),
            LinearSynapses(LogNormal(40.0, 2.0, density=0.7, max_value=400.0)),
            ModulatedZenkeRule(d=0.01),
        ),
        "pairs": (
            ComposedLeakySoma(resistance=0.1),
            strong,
            ModulatedBoundedQuadrupletRule(FOUR, FOUR, max_clip=FOUR),
        ),
        "plateau": (ComposedLeakySoma(resistance=0.1), strong, BTSPRule(w_max=300.0, k_dep=50.0)),
    }
    modules = {
        name: Neuron(7, inhibitory_rate=0.3, soma=soma, synapses=synapses, delays=delays, learning_rule=rule)
        for name, (soma, synapses, rule) in populations.items()
    }
    reading = [
        Connection(origin, f"{name}:in_spikes")
        for name in modules
        for origin in ("eye:spikes", f"{name}:out_spikes", "pairs:out_spikes")
        if not (name == "pairs" and origin == f"{name}:out_spikes")
    ]
    modulated = [Connection("average:output", f"{name}:modulation") for name in modules]
    chain = [
        Connection("inputs:light", "eye:signal"),
        Connection("leaky:out_spikes", "difference:x_spikes"),
        Connection("eye:spikes", "difference:y_spikes"),
        Connection("difference:signal", "sum:signal"),
        Connection("difference:signal", "average:signal"),
        Connection("sum:output", "average:trace"),
    ]
    others = {
        "eye": LinearSpiker(max_freq=200.0),
        "difference": TanhIntegrator(),
        "sum": SignalAccumulator(),
        "average": SignalAverage(chained=True),
    }
    outputs = {"modulation": "average:output"}
    return Brain({**others, **modules}, [*chain, *reading, *modulated], inputs={"light": (9,)}, outputs=outputs)


def stimulus(brain: Brain) -> dict[str, np.ndarray]:
    """Waves, one for each number."""

    def waves(shape):
        steps, numbers = np.arange(NUM_STEPS), np.arange(int(np.prod(shape)))
        return np.sin(steps[:, None] / 9 + numbers).reshape(NUM_STEPS, *shape).astype(np.float32)

    return {name: abs(waves(shape)) for name, shape in brain.inputs.items()}


def run(brain: Brain, init: Callable[[Any], Any], layout, num_devices, axis, mode):
    neurons = [name for name, module in brain.modules.items() if isinstance(module, Neuron)]
    record = tuple(f"{name}:out_spikes" for name in neurons)
    graph_loop = outlay.graph.GraphLoop(brain.graph, record=record)
    mesh = outlay.mesh(f"{axis}={num_devices}", devices=jax.devices()[:num_devices])
    inputs = stimulus(brain)
    program = outlay.program(graph_loop, init, inputs, layout=layout, mesh=mesh, mode=mode)
    state, outputs = program(program.init(jax.random.key(0)), inputs)
    return jax.device_get((program.crop(state), outputs))


def main() -> None:
    outlay.simulate(2)
    everywhere = [("**", jax.sharding.PartitionSpec()), ("batch.**", jax.sharding.PartitionSpec())]
    read, built = tutorial(), every_component()
    start = jax.device_get(jax.jit(built.init, compiler_options=QUICK)(jax.random.key(0)))
    places = {"spiker": 0, "A_excitatory": 1, "integrator": 0}
    # One each: as users compile them, programs of a Brain take seconds.
    arrangements = {
        "tutorial by module": (read, read.init, (outlay.by_module(places), 2, "all", "placed")),
        "every component by neuron": (
            *(built, lambda key: jax.tree.map(jnp.asarray, start)),
            (outlay.layout.by_rows("neurons"), 2, "neurons", "manual"),
        ),
    }
    for name, (brain, init, arrangement) in arrangements.items():
        alone, laid_out = run(brain, init, everywhere, 1, "all", "auto"), run(brain, init, *arrangement)
        spikes = {population: int(np.abs(recorded).sum()) for population, recorded in alone[1]["recorded"].items()}
        same = jax.tree_util.tree_leaves_with_path(jax.tree.map(np.array_equal, laid_out, alone))
        differing = [jax.tree_util.keystr(path) for path, equal in same if not equal]
        print(json.dumps({"arrangement": name, "leaves": len(same), "differing": differing, "spikes": spikes}))


if __name__ == "__main__":
    main()
