"""Spikers against their equations written out with loops."""

import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlay.brain.encoders import LinearSpiker, PoissonSpiker, TopologicalLinearSpiker, TopologicalPoissonSpiker
from outlay.brain.module import BrainError

KEY = jax.random.key(3)
SIGNAL = np.array([-0.7, 0.1, 0.9])


def run(spiker, signals, dt, dtype=jnp.float32):
    """The spikes of every step, and the last state."""
    signals = jnp.asarray(signals, dtype)
    state = spiker.init(KEY, {"signal": signals.shape[1:]}, dt=dt, dtype=dtype)

    def step(state, signal):
        return spiker.step(state, {"signal": signal}, dt=dt)

    state, outputs = jax.lax.scan(step, state, signals)
    return np.asarray(outputs["spikes"]), state


def expected_leaky(drives, *, tau, cd, max_freq, dt):
    """Spikes and last potentials of leaky units, one at a time and in double precision."""
    scale = 1 + 1 / (math.exp((1000 - cd * max_freq) / (tau * max_freq)) - 1)
    spikes, potentials = np.zeros(drives.shape, np.int8), np.zeros(drives.shape[1:])
    for unit in np.ndindex(drives.shape[1:]):
        v, refractory = 0.0, cd
        for step in range(len(drives)):
            ready = refractory >= cd
            v = math.exp(-dt / tau) * v + ready * tau * (1 - math.exp(-dt / tau)) * scale * drives[(step, *unit)]
            spiked = v > tau
            v, refractory = (0.0, 0.0) if spiked else (v, refractory + dt)
            spikes[(step, *unit)], potentials[unit] = spiked, v
    return spikes, potentials


def expected_drive(signal, *, glue, mins, maxs, resolution, sigma):
    space = np.linspace(0, math.pi, resolution)
    drive = np.zeros((len(signal), resolution))
    for i, value in enumerate(signal):
        x = (value - mins[i]) / (maxs[i] - mins[i])
        for j in range(resolution):
            g = math.sin(space[j] + math.pi * x) if glue[i] else math.tanh(space[j] - math.pi * x)
            drive[i, j] = math.exp(-0.5 / sigma * g**2)
    return drive


# XLA's CPU takes float32's subnormal numbers for 0, and then a unit is ready at once.
COOLDOWNS = st.floats(0, 4, width=32, allow_subnormal=False)


@pytest.mark.compiles
@hypothesis.given(tau=st.floats(5, 200), cd=COOLDOWNS, max_freq=st.floats(20, 200), dt=st.sampled_from([0.5, 1.0, 2.0]))
@hypothesis.settings(max_examples=8)
def test_linear_spiker(tau, cd, max_freq, dt):
    settings = {"tau": tau, "cd": cd, "max_freq": max_freq}
    signals = np.broadcast_to(np.linspace(0, 1, 7, dtype=np.float32), (80, 7))
    spikes, state = run(LinearSpiker(**settings), signals, dt)
    want, potential = expected_leaky(signals, **settings, dt=dt)
    np.testing.assert_array_equal(spikes[:, :-1], want[:, :-1])  # at 1 the threshold is reached by rounding alone
    np.testing.assert_allclose(state["potential"][:-1], potential[:-1], rtol=1e-4, atol=1e-4 * tau)


def test_a_linear_spiker_at_1_spikes_at_max_freq_and_at_0_never():
    spikes, _ = run(LinearSpiker(tau=30.0, cd=2.0, max_freq=90.0), np.tile([0.0, 1.0], (2000, 1)), dt=1.0)
    assert spikes.sum(axis=0) / 2 == pytest.approx([0, 90], abs=9)


@pytest.mark.parametrize(("glue", "dt"), [(False, 1.0), (True, 0.5), ((True, False, True), 0.5)])
def test_topological_linear_spiker(glue, dt):
    settings = {"tau": 30.0, "cd": 2.0, "max_freq": 200.0}
    space = {"mins": (-1.0, -1.0, 0.0), "maxs": (1.0, 2.0, 1.0), "resolution": 32, "sigma": 0.05}
    spiker = TopologicalLinearSpiker(**settings, **space, glue=glue)
    spikes, state = run(spiker, np.tile(SIGNAL, (60, 1)), dt)
    drive = expected_drive(SIGNAL, **space, glue=np.broadcast_to(glue, 3))
    want, potential = expected_leaky(np.tile(drive, (60, 1, 1)), **settings, dt=dt)
    assert spikes.dtype == np.int8
    assert want.sum() > 50
    assert (spikes != want).sum() <= 2  # a unit at its threshold by rounding
    np.testing.assert_allclose(state["potential"], potential, atol=1e-2)


@pytest.mark.compiles
def test_a_topological_poisson_spiker_spikes_with_the_probability_of_its_drive():
    space = {"mins": (-1.0,) * 3, "maxs": (1.0,) * 3, "resolution": 16, "sigma": 1 / 32}
    spiker = TopologicalPoissonSpiker(max_freq=400.0, mins=-1.0, maxs=1.0, resolution=16)
    spikes, _ = run(spiker, np.tile(SIGNAL, (4000, 1)), dt=2.0)
    chance = expected_drive(SIGNAL, **space, glue=(False,) * 3) * 2.0 * 400 / 1000
    np.testing.assert_allclose(spikes.mean(axis=0), chance, atol=5 * math.sqrt(0.25 / 4000))


def test_a_poisson_spiker_spikes_with_the_probability_of_its_signal():
    spikes, state = run(PoissonSpiker(max_freq=500.0), np.tile([0.0, 0.2, 1.0], (4000, 1)), dt=1.0)
    np.testing.assert_allclose(spikes.mean(axis=0), [0, 0.1, 0.5], atol=5 * math.sqrt(0.25 / 4000))
    assert int(state["step"]) == 4000


def test_what_a_poisson_unit_draws_does_not_depend_on_how_many_there_are():
    few, _ = run(PoissonSpiker(max_freq=500.0), np.ones((50, 5)), dt=1.0)
    many, _ = run(PoissonSpiker(max_freq=500.0), np.ones((50, 40)), dt=1.0)
    np.testing.assert_array_equal(few, many[:, :5])
    assert 0.4 < np.mean(many[:, 0] == many[:, 1]) < 0.95, "units draw each for themselves"
    assert not np.array_equal(many[0], many[1]), "and anew in every step"


@pytest.mark.some_cases(2)
@pytest.mark.compiles
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("spiker", [LinearSpiker(), PoissonSpiker(), TopologicalLinearSpiker(resolution=8)])
def test_half_precision_runs_and_stays_finite(spiker, dtype):
    spikes, state = run(spiker, np.full((400, 2), 0.8), 1.0, dtype)
    assert spikes.sum() > 0
    floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert all(leaf.dtype == dtype and bool(jnp.isfinite(leaf).all()) for leaf in floats)


@pytest.mark.parametrize(
    ("spiker", "what", "fix"),
    [
        (LinearSpiker(tau=-3), "tau is -3 ms", "a positive number, such as 100 ms"),
        (LinearSpiker(tau=math.inf), "tau is inf ms", "a positive number, such as 100 ms"),
        (LinearSpiker(cd=-1.0), "cd is -1 ms", "0 or a positive number, such as 2 ms"),
        (
            LinearSpiker(max_freq=600.0),
            "max_freq is 600 Hz, but a cooldown cd of 2 ms allows less than 500 Hz",
            "a lower max_freq or a shorter cd",
        ),
        (PoissonSpiker(max_freq=0.0), "max_freq is 0 Hz", "a positive number, such as 100 Hz"),
        (
            PoissonSpiker(max_freq=2000.0),
            "max_freq is 2000 Hz, and one spike in each step of 1 ms is 1000 Hz",
            "a lower max_freq or a smaller dt",
        ),
        (TopologicalLinearSpiker(resolution=0), "resolution is 0", "a positive number, such as 64"),
        (
            TopologicalPoissonSpiker(mins=(0.0, 1.0), maxs=1.0),
            "mins is 1 and maxs is 1",
            "maxs above mins: the range of the signal",
        ),
        (
            TopologicalPoissonSpiker(mins=(0.0, 1.0), maxs=(1.0, 2.0, 3.0)),
            "mins has 2 values and maxs has 3",
            "one value for all, or as many",
        ),
    ],
)
def test_settings_that_cannot_be(spiker, what, fix):
    assert spiker.problems(dt=1.0) == [f"{what}\n{fix}"]


def test_a_map_for_another_signal_is_refused():
    with pytest.raises(BrainError, match=r"mins has 2 values, and the signal is \(3,\)"):
        TopologicalLinearSpiker(mins=(0.0, -1.0)).outputs({"signal": (3,)})
