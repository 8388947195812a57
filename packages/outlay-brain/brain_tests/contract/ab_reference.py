"""The recorded run of the two-population model, and its first state as a state of a Brain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.decoders import ExponentialIntegrator
from outlay.brain.delays import N2NDelays, nothing_sent
from outlay.brain.encoders import TopologicalLinearSpiker
from outlay.brain.initializers import NormalizedSparseUniform
from outlay.brain.learning_rules.zenke import ZenkeRule
from outlay.brain.neuron import Neuron
from outlay.brain.somas.leaky import AdaptiveLeakySoma
from outlay.brain.synapses import LinearSynapses

FILE = Path(__file__).parents[1] / "data" / "ab_reference.npz"
POPULATIONS = {"A_ex": 256, "A_in": 64, "B_ex": 256, "B_in": 64}
STEPS = 400
STEPS_OF_POTENTIAL = 100
SAMPLED = slice(None, None, 32)
"""The neurons whose potentials, and whose kernels after the run, the file has; of all neurons it has every spike."""
SHARE = np.float32(0.00019994749)
"""The first target of a pair is this share of its kernel, but for some units in the last place, which the file has."""


def ab_brain() -> Brain:
    """The model of the recorded run: that of the file, with a resistance of 0.8."""
    soma = AdaptiveLeakySoma(resistance=0.8)
    synapses = LinearSynapses(NormalizedSparseUniform(density=0.2))

    def population(name: str) -> Neuron:
        inhibitory = float(name.endswith("in"))
        return Neuron(POPULATIONS[name], inhibitory, soma, synapses, N2NDelays(max_delay=8.0), ZenkeRule())

    sources = {
        "A_ex": ["spiker:spikes", "A_ex:out_spikes", "B_in:out_spikes"],
        "A_in": ["A_ex:out_spikes"],
        "B_ex": ["spiker:spikes", "B_ex:out_spikes", "A_in:out_spikes"],
        "B_in": ["B_ex:out_spikes"],
    }
    return Brain(
        {
            "spiker": TopologicalLinearSpiker(
                tau=30.0, cd=2.0, max_freq=200.0, glue=False, mins=-1.0, maxs=1.0, resolution=128, sigma=1 / 32
            ),
            **{name: population(name) for name in POPULATIONS},
            "integrator": ExponentialIntegrator(num_outputs=2, saturation_freq=50.0, tau=20.0),
        },
        [
            Connection("inputs:drive", "spiker:signal"),
            *(Connection(origin, f"{name}:in_spikes") for name, origins in sources.items() for origin in origins),
            Connection("A_ex:out_spikes", "integrator:spikes"),
            Connection("B_ex:out_spikes", "integrator:spikes"),
        ],
        inputs={"drive": (4,)},
        outputs={"action": "integrator:signal"},
    )


def recorded() -> dict[str, np.ndarray]:
    """The arrays of the file by name, with the first kernels and targets, which it has of connected pairs only."""
    with np.load(FILE) as file:
        record = {name: file[name] for name in file.files}
    for name in POPULATIONS:
        connected = np.unpackbits(record[f"{name}.connected"], axis=1).astype(bool)
        # The bytes of a float compress better apart: those of exponents are alike, those of mantissas random.
        kernel = np.ascontiguousarray(record[f"{name}.kernel0_bytes"].T).view(np.float32)[:, 0]
        target = ((kernel * SHARE).view(np.int32) + record[f"{name}.target0_ulps"]).view(np.float32)
        for array, values in (("kernel0", kernel), ("target_trace0", target)):
            record[f"{name}.{array}"] = np.zeros(connected.shape, np.float32)
            record[f"{name}.{array}"][connected] = values
    return record


def recorded_spikes(record: dict[str, np.ndarray], name: str) -> np.ndarray:
    """The recorded spikes of a module, (steps, cells), bool."""
    return np.unpackbits(record[f"{name}.spikes"], axis=1).astype(bool)


def recorded_start(brain: Brain, record: dict[str, np.ndarray]) -> dict[str, Any]:
    """The recorded first state, as the Brain's."""
    first = {name.removeprefix("state0/"): value for name, value in record.items() if name.startswith("state0/")}
    start = {name: _population(name, record, first, brain) for name in POPULATIONS}
    start["spiker"] = {"potential": first["spiker.potential"], "refractory": first["spiker._refractory"]}
    trace = {part: first[f"integrator.trace.tracer_{part}.trace"] for part in ("rise", "decay")}
    start["integrator"] = {"indices": record["integrator.indices"], "trace": trace}
    start["cache"] = {
        **{name: {"out_spikes": _signed(first[f"_cache.{name}.out_spikes.0"])} for name in POPULATIONS},
        "spiker": {"spikes": _signed(first["_cache.spiker.spikes.0"])},
        "integrator": {"signal": first["_cache.integrator.signal.0"]},
    }
    like = jax.eval_shape(brain.init, jax.random.key(0))
    start = {name: start[name] for name in like}
    return jax.tree.map(lambda value, leaf: jnp.asarray(value, leaf.dtype).reshape(leaf.shape), start, like)


def _population(name: str, record: dict[str, np.ndarray], first: dict[str, np.ndarray], brain: Brain) -> dict[str, Any]:
    own = {path.removeprefix(f"{name}."): value for path, value in first.items() if path.startswith(f"{name}.")}
    kernel = record[f"{name}.kernel0"]
    # Nothing was on its way when the recording began, so nothing says yet who is inhibitory.
    assert not own["delays._bitmask"].any()
    assert not own["learning_rule.pre_trace.trace"].any()
    num_inputs, module = kernel.shape[1], brain.modules[name]
    assert isinstance(module, Neuron)
    num_steps = module.delays.num_steps(dt=brain.dt)
    return {
        "inhibitory": record[f"{name}.inhibition"],
        # The recorded number says how many steps after it was pushed a spike is read, modulo the length of the buffer:
        # 8 of 8 is read at once. Ours counts the step in which it is pushed: 1 is read at once.
        "delays": {**nothing_sent(num_inputs, num_steps), "delays": record[f"{name}.delays"] % num_steps + 1},
        "synapses": {"kernel": kernel},
        "soma": {
            "potential": own["soma.potential"],
            "refractory": own["soma.refractory"],
            "threshold": own["soma.threshold.trace"],
        },
        "learning_rule": {
            "post_trace": own["learning_rule.post_trace.trace"],
            "post_slow_trace": own["learning_rule.post_slow_trace.trace"],
            "target_trace": record[f"{name}.target_trace0"],
            "pre_trace": np.zeros((num_steps, num_inputs), np.float32),
        },
    }


def _signed(cached: np.ndarray) -> np.ndarray:
    """Spikes as +1, -1 or 0, of bytes whose bit 0 is the spike and bit 1 an inhibitory neuron."""
    return ((cached & 1).astype(np.int8) * np.where(cached & 2, -1, 1)).astype(np.int8)
