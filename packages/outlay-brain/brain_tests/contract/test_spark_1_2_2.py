"""Small Brains against recorded runs of Spark 1.2.2, each read from the file that it wrote, at float32.

`spark_1_2_2.npz` holds for each the file, the state after one step without a signal, and what 160 steps then gave.
"""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.brain.neuron import Neuron

pytestmark = pytest.mark.newest

RECORD = np.load(Path(__file__).parents[1] / "data" / "spark_1_2_2.npz")
NAMES = sorted({name.split("/")[0] for name in RECORD.files} - {"state"})
ON_NEWEST_JAX = {"btsp", "exponential_all", "signals"}
"""Of the rules, test_narrow_floats.py runs quadruplet and oja there, and the self-tests of
test_sparse_steps.py run each."""
STEPS = 160
STEPS_OF_POTENTIAL = [20, 80, STEPS - 1]
SOMA = {
    "spike_counter": "since_spike",
    "threshold_trace.trace": "threshold",
    "adaptation_current": "adaptation",
    "recovery": "recovery",
}


def inputs_of(brain):
    steps = np.arange(STEPS)
    drive = np.stack([np.sin(2 * np.pi * steps / period + period) for period in (97, 61, 43)], 1)
    dopamine = np.sin(2 * np.pi * steps / 37)[:, None]
    every = {"drive": drive.clip(-1, 1), "dopamine": dopamine}
    return {name: jnp.asarray(every[name], jnp.float32) for name in brain.inputs}


def of(name):
    """What is recorded of one Brain."""
    return {key.partition("/")[2]: RECORD[key] for key in RECORD.files if key.startswith(f"{name}/")}


def kernel_of(record):
    return record["kernel"] if record["kernel"].ndim else RECORD[f"{record['kernel']}/kernel"]


def state_of(brain, record):
    """The recorded first state as ours."""
    state, neurons = jax.device_get(brain.init(jax.random.key(0))), brain.modules["A"]
    own, spiker = state["A"], state["spiker"]
    np.testing.assert_array_equal(own["inhibitory"].sum(), record["inhibition"].sum())
    sources = len(own["delays"]["inhibitory"])
    own["inhibitory"] = record["inhibition"].astype(bool)
    own["delays"]["inhibitory"] = np.concatenate([np.zeros(sources - 12, bool), own["inhibitory"]])
    own["synapses"]["kernel"] = kernel_of(record)
    if "delays" in record:
        longest = int(record["delays"].max()) + 1
        assert longest == neurons.delays.num_steps(dt=brain.dt)
        own["delays"]["delays"] = (record["delays"] + 1).astype(np.uint8)
    for spark_name, name in SOMA.items():
        if f"state/A.soma.{spark_name}" in record:
            own["soma"][name] = record[f"state/A.soma.{spark_name}"].astype(own["soma"][name].dtype)
    own["soma"]["potential"] = record["state/A.soma._potential"] - rest_of(neurons)
    if "state/A.rule.target_trace.trace" in record:
        own["learning_rule"]["target_trace"] = record["state/A.rule.target_trace.trace"]
    spiker["potential"], spiker["refractory"] = RECORD["state/spiker.potential"], RECORD["state/spiker._refractory"]
    state["cache"]["spiker"]["spikes"] = (RECORD["state/_cache.spiker.spikes.0"] & 1).astype(np.int8)
    if "acc" in state:  # after one step its base is what others read of it
        state["cache"]["acc"]["output"] = state["acc"]["trace"]
    for key, module in (("indices", "out"), ("samples", "some")):
        if key in record:
            state[module]["indices"] = record[key].astype(np.uint32)
    return jax.tree.map(jnp.asarray, state)


def rest_of(neurons):
    """Izhikevich's potential is the potential itself in Spark."""
    return neurons.soma.potential_rest if hasattr(neurons.soma, "recovery_update") else 0.0


@pytest.mark.some_cases(5, newest=1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ON_NEWEST_JAX else pytest.mark.any_jax) for name in NAMES]
)
def test_every_spike_is_that_of_spark(tmp_path, name):
    record, file = of(name), tmp_path / f"{name}.scfg"
    file.write_bytes(record["scfg"].tobytes())
    brain = outlay.brain.read_brain(file, inputs={"drive": (3,)})
    neurons = brain.modules["A"]
    assert isinstance(neurons, Neuron)

    def step(state, inputs):
        state, outputs = brain.step(state, inputs)
        return state, (state["cache"]["A"]["out_spikes"], state["A"]["soma"]["potential"], outputs)

    run = jax.jit(lambda state, inputs: jax.lax.scan(step, state, inputs))
    after, (spikes, potential, outputs) = run(state_of(brain, record), inputs_of(brain))
    recorded = np.unpackbits(record["spikes"], axis=1, count=12).astype(bool)
    assert recorded.sum() > 20  # of a run in which there is something to compare
    np.testing.assert_array_equal(np.asarray(spikes) != 0, recorded)
    np.testing.assert_allclose(
        potential[jnp.array(STEPS_OF_POTENTIAL)] + rest_of(neurons), record["potential"], rtol=1e-4, atol=2e-2
    )
    kernel = np.asarray(after["A"]["synapses"]["kernel"])
    np.testing.assert_allclose(kernel, record.get("kernel_after", kernel_of(record)), rtol=1e-6, atol=2e-5)
    for port in (key.removeprefix("output/") for key in record if key.startswith("output/")):
        np.testing.assert_allclose(outputs[port][::8], record[f"output/{port}"], rtol=1e-4, atol=2e-5)
