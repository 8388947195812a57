"""The somas that are not leaky ones, each against its equation in a loop; the leaky ones are in test_neuron."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlay.brain.registry import name_of, registered
from outlay.brain.somas.exponential import (
    AdaptiveExponentialSoma,
    ExponentialSoma,
    RefractoryExponentialSoma,
    SimplifiedAdaptiveExponentialSoma,
)
from outlay.brain.somas.izhikevich import IzhikevichSoma

STEPS, UNITS = 120, 3
CURRENTS = np.random.default_rng(1).uniform(0, 1, (STEPS, UNITS))


def run(soma, currents, dt):
    def step(state, current):
        state, spikes = soma.step(state, current, dt=dt)
        return state, (state["potential"], spikes)

    state = soma.init(jax.random.key(0), UNITS, dt=dt, dtype=jnp.float32)
    last, (potentials, spikes) = jax.jit(lambda s, c: jax.lax.scan(step, s, c))(state, jnp.asarray(currents, "float32"))
    return last, np.asarray(potentials), np.asarray(spikes)


def exponential(soma, currents, dt, cooldown=None, theta=None, adaptive=False):
    rest, c = soma.potential_rest, None if cooldown is None else round(cooldown / dt)
    v, n, w, base = 0.0, c, 0.0, soma.threshold - rest
    threshold, rows = base, []
    for current in currents:
        ready = c is None or n > c
        upstroke = soma.spike_slope * math.exp((v + rest - soma.rheobase_threshold) / soma.spike_slope)
        v += dt / soma.potential_tau * (-v + upstroke + soma.resistance * ((current if ready else 0) - w))
        spike = v > threshold and ready
        assert abs(v - threshold) > 1e-3
        v = soma.potential_reset - rest if spike else v
        n = None if c is None else (0 if spike else n + 1)
        if adaptive:
            w += dt / soma.adaptation_tau * (soma.adaptation_subthreshold * v - w) + soma.adaptation_delta * spike
        if theta:
            threshold = base + math.exp(-dt / theta[0]) * (threshold - base) + theta[1] * spike
        rows.append((v, spike))
    return rows


@pytest.mark.parametrize("dt", [0.5, 0.1])
@pytest.mark.parametrize(
    ("soma", "options"),
    [
        (ExponentialSoma(), {}),
        (RefractoryExponentialSoma(cooldown=1.3, potential_reset=-65.0), {"cooldown": 1.3}),
        (
            SimplifiedAdaptiveExponentialSoma(potential_reset=-60.0, threshold_delta=5.0),
            {"cooldown": 2.0, "theta": (20.0, 5.0)},
        ),
        (AdaptiveExponentialSoma(potential_reset=-60.0), {"adaptive": True}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exponential_somas(soma, options, dt):
    currents = CURRENTS * 130
    _, potentials, spikes = run(soma, currents, dt)
    for unit in range(UNITS):
        expected = exponential(soma, currents[:, unit], dt, **options)
        np.testing.assert_array_equal(spikes[:, unit], [spike for _, spike in expected])
        np.testing.assert_allclose(potentials[:, unit], [v for v, _ in expected], atol=0.02, rtol=1e-3)
    assert spikes.any()
    assert not spikes.all()


@pytest.mark.parametrize("dt", [1.0, 0.5])
def test_izhikevichs_soma(dt):
    soma, currents = IzhikevichSoma(resistance=0.9), CURRENTS * 25
    _, potentials, spikes = run(soma, currents, dt)
    for unit in range(UNITS):
        v, u = -65.0, 0.2 * -65.0
        for step in range(STEPS):
            v += dt * (0.04 * v**2 + 5 * v + 140 - u + 0.9 * currents[step, unit])
            u += dt * 0.02 * (0.2 * v - u)
            spike = v > 30
            assert abs(v - 30) > 1e-3
            v, u = (-65.0, u + 2) if spike else (v, u)
            assert spikes[step, unit] == spike
            np.testing.assert_allclose(potentials[step, unit], v + 65.0, atol=0.02, rtol=1e-3)
    assert spikes.any()


def test_a_regular_spiking_neuron_of_the_paper_fires_at_the_rate_that_the_paper_shows():
    # Izhikevich 2003, figure 2: a = 0.02, b = 0.2, c = -65, d = 8, and a steady current of 10.
    soma = IzhikevichSoma(recovery_update=8.0)
    _, _, spikes = run(soma, np.full((2000, UNITS), 10.0), 0.5)
    assert 10 <= spikes[1000:, 0].sum() * 2 <= 40  # Hz, in the second half of 1 s


@pytest.mark.parametrize(
    "soma",
    [AdaptiveExponentialSoma(potential_tau=0.0), ExponentialSoma(spike_slope=-1.0)],
    ids=lambda s: type(s).__name__,
)
def test_problems_are_named(soma):
    assert any(word in soma.problems(dt=1.0)[0] for word in ("potential_tau is 0 ms", "spike_slope is -1 mV"))


def test_somas_have_names_for_files():
    names = {
        "exponential": ExponentialSoma,
        "refractory_exponential": RefractoryExponentialSoma,
        "simplified_adaptive_exponential": SimplifiedAdaptiveExponentialSoma,
        "adaptive_exponential": AdaptiveExponentialSoma,
        "izhikevich": IzhikevichSoma,
    }
    for name, cls in names.items():
        assert registered(name, kind="soma") is cls
        assert name_of(cls, kind="soma") == name
