"""Runs the Brain of an old file with Spark 1.2.2, in its own compiled loop; started by `brain_spark.py`.

Spark 1.2.2 does not read files of 0.1.0, so the same model is built of its modules here, with the settings and seeds of
the file. Two of them say something else in 1.2.2: a neuron is ready when its counter *has reached* the cooldown, so one
step is added; and 0.1.0 draws SparseUniform kernels whatever the file says.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import spark
from _rounds import serve
from spark import ModuleSpecs, PortMap, nn
from spark.nn.components.delays.n2n_delays import N2NDelays, N2NDelaysConfig
from spark.nn.components.plasticity.zenke_rule import ZenkeRule, ZenkeRuleConfig
from spark.nn.components.somas.leaky import AdaptiveLeakySoma, AdaptiveLeakySomaConfig
from spark.nn.components.synapses.linear import LinearSynapses, LinearSynapsesConfig
from spark.nn.initializers.common import SparseUniformInitializerConfig
from spark.nn.interfaces.input.topological import TopologicalLinearSpiker, TopologicalLinearSpikerConfig
from spark.nn.interfaces.output.exponential import ExponentialIntegrator, ExponentialIntegratorConfig
from spark.nn.neurons.alif import ALIFNeuron, ALIFNeuronConfig

SOMA = [
    "potential_rest",
    "potential_reset",
    "potential_tau",
    "resistance",
    "threshold",
    "threshold_tau",
    "threshold_delta",
]
RULE = ["pre_tau", "post_tau", "post_slow_tau", "target_tau", "a", "b", "c", "d", "p"]


def neuron(old, dtype, plastic):
    """Return a population: delays, synapses, a soma and, if plastic, Zenke's rule, which writes the kernel."""
    delays, synapses, soma, rule = (old[name] for name in ("delays", "synapses", "soma", "learning_rule"))
    units, drawn = tuple(old["units"]), synapses["kernel"]
    kernel = SparseUniformInitializerConfig(dtype=dtype, scale=drawn["scale"], density=drawn["density"])

    def shared(part):
        return {"seed": part["seed"], "dtype": dtype, "dt": part["dt"]}

    specs = (
        ModuleSpecs(
            name="delays",
            module_cls=N2NDelays,
            inputs={"in_spikes": [PortMap("__call__", "in_spikes")]},
            config=N2NDelaysConfig(units=units, max_delay=delays["max_delay"], **shared(delays)),
        ),
        ModuleSpecs(
            name="synapses",
            module_cls=LinearSynapses,
            inputs={"spikes": [PortMap("delays", "out_spikes")]},
            effects={"kernel": [PortMap("rule", "kernel")]} if plastic else {},
            config=LinearSynapsesConfig(units=units, kernel=kernel, **shared(synapses)),
        ),
        ModuleSpecs(
            name="soma",
            module_cls=AdaptiveLeakySoma,
            inputs={"current": [PortMap("synapses", "currents")]},
            outputs={"out_spikes": "spikes"},
            config=AdaptiveLeakySomaConfig(
                cooldown=soma["cooldown"] + soma["dt"], **{name: soma[name] for name in SOMA}, **shared(soma)
            ),
        ),
        ModuleSpecs(
            name="rule",
            module_cls=ZenkeRule,
            inputs={
                "pre_spikes": [PortMap("delays", "out_spikes")],
                "post_spikes": [PortMap("soma", "spikes")],
                "kernel": [PortMap("synapses", "kernel", is_property=True)],
            },
            config=ZenkeRuleConfig(eta=rule["gamma"], **{name: rule[name] for name in RULE}, **shared(rule)),
        ),
    )
    of_all = {name: old[name] for name in ("inhibitory_rate", "seed", "dt")}
    specs = specs if plastic else specs[:-1]
    return ALIFNeuron, ALIFNeuronConfig(modules_specs=specs, units=units, **of_all)


def brain(path, dtype, plastic):
    """Build the Brain of the file."""
    specs = []
    for name, spec in json.loads(Path(path).read_text())["__cfg__"]["modules_map"].items():
        old = {key: value for key, value in spec["__data__"]["config"].items() if not key.startswith("__")}
        outputs = {}
        if name == "spiker":
            numbers = {key: old[key]["data"] for key in ("glue", "mins", "maxs")}
            cls, config = TopologicalLinearSpiker, TopologicalLinearSpikerConfig(**old | numbers | {"dtype": dtype})
        elif name == "integrator":
            cls, config = ExponentialIntegrator, ExponentialIntegratorConfig(**old | {"dtype": dtype})
            outputs = {"action": "signal"}
        else:
            cls, config = neuron(old, dtype, plastic)
        wired = {
            port: [PortMap(origin["__data__"]["origin"], origin["__data__"]["port"]) for origin in origins]
            for port, origins in spec["__data__"]["inputs"].items()
        }
        specs.append(ModuleSpecs(name=name, module_cls=cls, inputs=wired, outputs=outputs, config=config))
    return nn.Brain(config=nn.BrainConfig(modules_specs=tuple(specs), seed=0, dt=1.0))


def load(path, dtype, plastic, num_steps):
    """Load the model into Spark's own compiled loop of many steps."""
    built = brain(path, getattr(jnp, dtype), plastic)
    drive = spark.FloatArray(jnp.asarray(np.sin(np.arange(4.0)), dtype))
    built(drive=drive)  # this builds it
    graph, state = spark.split(built)

    @spark.jit
    def loop(graph, state):
        def step(state, _):
            model = spark.merge(graph, state)
            outputs = model(drive=drive)
            return spark.split(model)[1], outputs["action"].value

        return spark.scan(step, state, length=num_steps)

    def run():
        nonlocal state
        state, _ = jax.block_until_ready(loop(graph, state))

    return run, None


if __name__ == "__main__":
    serve(load)
