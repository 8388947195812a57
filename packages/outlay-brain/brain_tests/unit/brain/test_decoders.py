"""The integrator against its equation written out with loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlay.brain.decoders import ExponentialIntegrator
from outlay.brain.module import BrainError

SPIKES = np.random.default_rng(0).choice([-1, 0, 0, 0, 1], size=(40, 11)).astype(np.int8)


def run(integrator, spikes, dt, dtype=jnp.float32, shape=(11,)):
    state = integrator.init(jax.random.key(1), {"spikes": shape}, dt=dt, dtype=dtype)

    def step(state, now):
        return integrator.step(state, {"spikes": now.reshape(shape)}, dt=dt)

    last, outputs = jax.lax.scan(step, state, jnp.asarray(spikes))
    return np.asarray(outputs["signal"]), state, last


def expected(spikes, groups, num_outputs, *, tau, saturation_freq, smooth, dt):
    signal = np.zeros((len(spikes), num_outputs))
    for group in range(num_outputs):
        members = [neuron for neuron in range(spikes.shape[1]) if groups[neuron] == group]
        scale = (1000 / saturation_freq) / (dt * tau * len(members))
        rise = decay = 0.0
        for step, now in enumerate(spikes):
            count = sum(now[neuron] != 0 for neuron in members)
            rise_tau = tau * 10 / (tau + 10) if smooth else tau
            rise = math.exp(-dt / rise_tau) * rise + scale * count
            decay = math.exp(-dt / 10) * decay + count / 10
            signal[step, group] = decay - rise if smooth else rise
    return signal


@pytest.mark.parametrize(
    ("smooth", "dt", "shape"),
    [(True, 1.0, (11,)), (True, 0.5, (1, 11)), (False, 1.0, (1, 11)), (False, 0.5, (11,))],  # pairs
)
def test_integrator(smooth, dt, shape):
    settings = {"tau": 15.0, "saturation_freq": 40.0}
    signal, state, _ = run(ExponentialIntegrator(3, smooth_trace=smooth, **settings), SPIKES, dt, shape=shape)
    groups = np.asarray(state["indices"])
    want = expected(SPIKES, groups, 3, **settings, smooth=smooth, dt=dt)
    np.testing.assert_allclose(signal, want, rtol=1e-4, atol=1e-5)
    assert np.bincount(groups).tolist() == [4, 4, 3], "sizes as equal as can be"
    assert sorted(groups) != groups.tolist(), "dealt out at random"


def test_without_shuffling_neurons_keep_their_order():
    _, state, last = run(ExponentialIntegrator(3, shuffle=False), SPIKES, 1.0)
    assert state["indices"].tolist() == [0] * 4 + [1] * 4 + [2] * 3 == last["indices"].tolist()


def test_groups_of_ones_own():
    own = (2, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1)
    signal, state, _ = run(ExponentialIntegrator(3, output_map=own), SPIKES, 1.0)
    assert tuple(state["indices"].tolist()) == own
    want = expected(SPIKES, own, 3, tau=5.0, saturation_freq=50.0, smooth=True, dt=1.0)
    np.testing.assert_allclose(signal, want, rtol=1e-4, atol=1e-5)


def test_a_group_that_spikes_at_the_saturation_frequency_is_near_1():
    every_20_ms = (np.arange(2000)[:, None] % 20 == np.arange(20)[None]).astype(np.int8)
    signal, _, _ = run(ExponentialIntegrator(1, smooth_trace=False, tau=100.0), every_20_ms, 1.0, shape=(20,))
    assert signal[-1, 0] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("smooth", [True, False])
def test_half_precision_keeps_its_dtype(dtype, smooth):
    signal, _, last = run(ExponentialIntegrator(2, smooth_trace=smooth), SPIKES, 1.0, dtype)
    assert signal.dtype == dtype
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(last["trace"]))


@pytest.mark.parametrize(
    ("integrator", "what", "fix"),
    [
        (ExponentialIntegrator(0), "num_outputs is 0", "a positive number, such as 1"),
        (ExponentialIntegrator(2, tau=-5.0), "tau is -5 ms", "a positive number, such as 5 ms"),
        (
            ExponentialIntegrator(2, output_map=(0, 1, 2, 7)),
            "output_map names groups 2, 7",
            "groups 0 to 1: there are num_outputs = 2",
        ),
    ],
)
def test_settings_that_cannot_be(integrator, what, fix):
    assert integrator.problems(dt=1.0) == [f"{what}\n{fix}"]


def test_groups_that_do_not_fit_what_arrives():
    with pytest.raises(BrainError, match="output_map has 3 entries, and 4 neurons arrive"):
        ExponentialIntegrator(2, output_map=(0, 1, 1)).outputs({"spikes": (4,)})
    with pytest.raises(BrainError, match=r"of the 4 neurons that arrive, group 2 would have none"):
        ExponentialIntegrator(3, output_map=(0, 1, 1, 0)).outputs({"spikes": (4,)})
