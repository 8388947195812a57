"""Brains whose populations take one pass over their pairs in a step: each rule, with its synapses and delays."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.delays import N2NDelays, NDelays, NoDelays
from outlay.brain.encoders import PoissonSpiker
from outlay.brain.initializers import Uniform
from outlay.brain.neuron import Neuron
from outlay.brain.registry import registered, registered_names
from outlay.brain.run.run_brain import run_brain
from outlay.brain.somas.leaky import AdaptiveLeakySoma
from outlay.core.paths import flatten_paths

RULES = sorted(registered_names("learning_rule"))
PLAIN_RULES = [rule for rule in RULES if not rule.startswith("modulated_")]
"""Those that are not another rule with a factor."""
RULES_IN = {
    "float32": [rule for rule in RULES if rule not in PLAIN_RULES],
    "float16": PLAIN_RULES[::2],
    "bfloat16": PLAIN_RULES[1::2],
}
"""The rules that a Brain of a dtype is run with, each in one. One with a factor has the equations of the plain one in
it; test_sparse_steps.py tests the passes of plain rules in all three dtypes, and of a rule with a factor in one."""
SETTINGS = {"btsp": {"eta": 100.0}}
"""BTSP takes seconds, and a run of these tests milliseconds."""
SYNAPSES = registered_names("synapses")
DELAYS = (N2NDelays(max_delay=8.0), NDelays(max_delay=5.0), NoDelays())
NUM_STEPS, NUM_CELLS, UNITS = 24, 19, 6
DTYPES = {"float32": 1e-5, "float16": 0.0, "bfloat16": 0.0}
"""Share of the largest entry by which a leaf may differ: in float32 a product and a sum may be rounded as one."""


EACH_DTYPE = [pytest.param(n, marks=[] if n == "float16" else pytest.mark.any_jax) for n in DTYPES]
"""For a test of each rule. Another XLA may call machine code otherwise, whatever numbers are in it, or not round each
operation, which float16 shows."""


def brain_of(populations, dtype="float32", num_cells=NUM_CELLS):
    """A spiker that all populations read, none of which reads another: what differs in one stays there."""
    modules = {"eye": PoissonSpiker(max_freq=300.0), **populations}
    connections = [Connection("inputs:light", "eye:signal")]
    for name, neuron in populations.items():
        connections.append(Connection("eye:spikes", f"{name}:in_spikes"))
        connections += [Connection("inputs:factor", f"{name}:{p}") for p in neuron.inputs() if p != "in_spikes"]
    return Brain(modules, connections, inputs={"light": (num_cells,), "factor": (1,)}, dtype=dtype)


def population(rule, synapses, delays, **settings):
    soma = AdaptiveLeakySoma(resistance=60.0, cooldown=1.0)
    return Neuron(UNITS, 0.5, soma, registered(synapses, kind="synapses")(Uniform(scale=2.0)), delays, rule, **settings)


def inputs(num_steps=NUM_STEPS):
    return {
        "light": np.full((num_steps, NUM_CELLS), 0.9, np.float32),
        "factor": np.full((num_steps, 1), 0.7, np.float32),
    }


def ran(brain, kernel, **options):
    return run_brain(brain, steps=NUM_STEPS, inputs=inputs(), kernel=kernel, record=["*:out_spikes"], **options)


def leaves(run):
    return {path: np.asarray(leaf) for path, leaf in flatten_paths(run.state)[0]}


def every_rule(dtype, left_out=()):
    """A Brain with each rule of a dtype, which meet kinds of delays and of synapses in turn."""
    shift = list(DTYPES).index(dtype)
    synapses, delays = itertools.cycle(SYNAPSES), itertools.cycle((*DELAYS[shift:], *DELAYS[:shift]))
    rules = {rule: registered(rule, kind="learning_rule")(**SETTINGS.get(rule, {})) for rule in RULES_IN[dtype]}
    rules = {name: rule for name, rule in rules.items() if name not in left_out}
    rules["no_rule"] = None
    return brain_of({name: population(rule, next(synapses), next(delays)) for name, rule in rules.items()}, dtype)


def assert_near(got, right, path, share):
    """Floating-point numbers differ by at most a share of the largest, and others not at all."""
    if not jnp.issubdtype(right.dtype, jnp.floating):
        np.testing.assert_array_equal(got, right, path)
        return
    off = np.abs(got.astype(np.float32) - right.astype(np.float32)).max()
    off /= max(1e-3, np.abs(right.astype(np.float32)).max())
    assert off <= share, f"{path} is off by {off:.2g} of its largest entry"
