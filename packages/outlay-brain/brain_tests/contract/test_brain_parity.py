"""The Brain's equations against a recorded run of the public framework that they are taken from."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brain_tests.contract.ab_reference import (
    POPULATIONS,
    SAMPLED,
    STEPS,
    STEPS_OF_POTENTIAL,
    ab_brain,
    recorded,
    recorded_spikes,
    recorded_start,
)
from brain_tests.contract.brain_arrangements import model, recorded_start_of_half

SPIKING = ("spiker", *POPULATIONS)


def run(brain, state, drive):
    """The last state, and by step the outputs, what every module spiked, and the potentials."""

    def step(state, inputs):
        state, outputs = brain.step(state, {"drive": inputs})
        ports = state["cache"]
        there = [name for name in SPIKING if name in ports]
        spikes = {name: ports[name]["spikes" if name == "spiker" else "out_spikes"].reshape(-1) for name in there}
        return state, (outputs, spikes, {name: state[name]["soma"]["potential"] for name in there if name != "spiker"})

    return jax.jit(lambda state, drive: jax.lax.scan(step, state, drive))(state, drive)


@pytest.fixture(scope="module")
def record():
    return recorded()


@pytest.fixture(scope="module")
def ran(record):
    brain = ab_brain()
    last, (outputs, spikes, potentials) = run(brain, recorded_start(brain, record), jnp.asarray(record["drive"]))
    return jax.device_get((last, outputs, spikes, potentials))


@pytest.mark.parametrize("name", SPIKING)
def test_every_spike_of_400_steps_is_the_recorded_one(record, ran, name):
    spikes, expected = ran[2][name] != 0, recorded_spikes(record, name)
    assert spikes.shape == expected.shape == (STEPS, expected.shape[1])
    assert int((spikes != expected).sum()) == 0
    assert expected.sum() > 1000  # of a run in which there is something to compare


@pytest.mark.parametrize("name", POPULATIONS)
def test_spikes_have_the_sign_of_their_neuron(record, ran, name):
    spikes = ran[2][name]
    signs = np.where(record[f"{name}.inhibition"], -1, 1)
    np.testing.assert_array_equal(spikes, np.abs(spikes) * signs)


@pytest.mark.parametrize("name", POPULATIONS)
def test_potentials_are_the_recorded_ones_within_a_microvolt(record, ran, name):
    error = np.abs(ran[3][name][:STEPS_OF_POTENTIAL, SAMPLED] - record[f"{name}.potential"]).max()
    assert error < 1e-3, f"{error} mV"


@pytest.mark.parametrize("name", POPULATIONS)
def test_kernels_after_400_steps_are_the_recorded_ones(record, ran, name):
    kernel = ran[0][name]["synapses"]["kernel"]
    assert np.abs(kernel[SAMPLED] - record[f"{name}.kernelT"]).max() < 1e-4
    assert np.abs(kernel - record[f"{name}.kernel0"]).max() > 1e-3  # they have changed


def test_the_action_is_the_recorded_one(record, ran):
    assert np.abs(ran[1]["action"] - record["action"]).max() < 1e-3


@pytest.mark.thorough  # test_narrow_floats.py has float16
def test_a_float16_state_runs_and_stays_finite(record):
    """Of half of the Brain: the other half is as this is.

    The largest number is 65504; bfloat16 has the range of float32, and test_narrow_floats.py tests its bits.
    """
    brain = dataclasses.replace(model(), dtype="float16")
    like = jax.eval_shape(brain.init, jax.random.key(0))
    start = jax.tree.map(lambda value, leaf: jnp.asarray(value, leaf.dtype), recorded_start_of_half(), like)
    last, (outputs, spikes, potentials) = run(brain, start, jnp.asarray(record["drive"][:100], brain.dtype))
    for leaf in jax.tree.leaves((last, outputs, potentials)):
        assert not jnp.issubdtype(leaf.dtype, jnp.floating) or bool(jnp.isfinite(leaf).all())
    assert {leaf.dtype for leaf in jax.tree.leaves(potentials)} == {jnp.dtype("float16")}
    assert all(bool((spiked != 0).any()) for spiked in spikes.values())
