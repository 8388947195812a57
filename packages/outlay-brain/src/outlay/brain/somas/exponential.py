"""Exponential integrate-and-fire somas."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.module import State, negative, not_positive
from outlay.brain.registry import register
from outlay.brain.somas.soma import AdaptiveThreshold, Membrane, Refractory


@dataclass(frozen=True)
class ExponentialMembrane(Membrane, abc.ABC):
    """The equation of an exponential integrate-and-fire membrane, and its settings; see `ExponentialSoma`."""

    potential_rest: float = field(default=-70.0, metadata={"unit": "mV"})
    potential_reset: float = field(default=-51.0, metadata={"unit": "mV"})
    potential_tau: float = field(default=5.0, metadata={"unit": "ms"})
    resistance: float = field(default=0.5, metadata={"unit": "GOhm"})
    threshold: float = field(default=-30.0, metadata={"unit": "mV"})
    rheobase_threshold: float = field(default=-50.0, metadata={"unit": "mV"})
    spike_slope: float = field(default=2.0, metadata={"unit": "mV"})

    def charge(self, state: State, current: jax.Array, ready: Any, *, dt: float) -> jax.Array:
        """Return the potential before a reset, in float32, since the upstroke could overflow a narrower dtype."""
        v = state["potential"].astype(jnp.float32)
        upstroke = jnp.exp((v - (self.rheobase_threshold - self.potential_rest)) / self.spike_slope)
        driven = self.resistance * jnp.where(ready, current, 0).astype(jnp.float32)
        charged = v + (dt / self.potential_tau) * (-v + self.spike_slope * upstroke + driven)
        # A cooldown suppresses the spike but not the upstroke, which could overflow during it.
        return jnp.minimum(charged, jnp.finfo(state["potential"].dtype).max)

    def problems(self, *, dt: float) -> list[str]:
        """Report a time constant or a slope that is not positive, and a negative resistance."""
        return not_positive(self, "potential_tau", "spike_slope") + negative(self, "resistance")


@register("exponential", kind="soma")
@dataclass(frozen=True)
class ExponentialSoma(ExponentialMembrane):
    """The exponential integrate-and-fire model.

    With v the potential above rest, one Euler step of dt::

        v'    = v + dt/tau (-v + slope exp((v - rheobase + rest) / slope) + resistance current)
        spike = v' > threshold - rest,    and then v' = reset - rest

    resistance × current is in mV: GOhm × pA.

    Sources: `ExponentialSoma` of Spark (Nogarx/Spark); Fourcaud-Trocmé et al., J. Neurosci. 23 (2003) 11628; Gerstner
    et al., Neuronal Dynamics, chapter 5.2.

    State: `potential` (units,), mV above rest.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike, mV.
        potential_tau: the time constant of the membrane, ms.
        resistance: the membrane resistance, GOhm.
        threshold: the spike threshold, mV.
        rheobase_threshold: the potential at which the exponential term takes over, mV.
        spike_slope: the sharpness of the upstroke, mV.
    """


@register("refractory_exponential", kind="soma")
@dataclass(frozen=True)
class RefractoryExponentialSoma(Refractory, ExponentialMembrane):
    """An exponential soma that ignores its input for a refractory time after each spike.

    With c = round(cooldown/dt), n the steps since the last spike and v the potential above rest, one Euler step::

        ready = n > c
        v'    = v + dt/tau (-v + slope exp((v - rheobase + rest) / slope) + ready resistance current)
        spike = v' > threshold - rest and ready,    and then v' = reset - rest
        n'    = 0 on a spike, else n + 1;           n = c at first

    Source: `RefractoryExponentialSoma` of Spark (Nogarx/Spark).

    State: `potential` (units,), mV above rest; `refractory` (units,), the steps n.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike, mV.
        potential_tau: the time constant of the membrane, ms.
        resistance: the membrane resistance, GOhm.
        threshold: the spike threshold, mV.
        rheobase_threshold: the potential at which the exponential term takes over, mV.
        spike_slope: the sharpness of the upstroke, mV.
        cooldown: the refractory time after a spike, ms.
    """


@register("simplified_adaptive_exponential", kind="soma")
@dataclass(frozen=True)
class SimplifiedAdaptiveExponentialSoma(AdaptiveThreshold, ExponentialMembrane):
    """A refractory exponential soma whose threshold θ jumps at each spike, and decays back.

    In every step::

        spike = v' > θ and ready
        θ'    = Tracer(threshold_tau, scale = threshold_delta, base = threshold - rest) of the spike

    and all else as in `RefractoryExponentialSoma`.

    Source: `SimplifiedAdaptiveExponentialSoma` of Spark (Nogarx/Spark).

    State: `potential` (units,), mV above rest; `refractory` (units,), the steps n; `threshold` (units,), θ in mV.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike, mV.
        potential_tau: the time constant of the membrane, ms.
        resistance: the membrane resistance, GOhm.
        threshold: the base of the spike threshold, mV.
        rheobase_threshold: the potential at which the exponential term takes over, mV.
        spike_slope: the sharpness of the upstroke, mV.
        cooldown: the refractory time after a spike, ms.
        threshold_tau: the time constant of the threshold, ms.
        threshold_delta: the increase of the threshold per spike, mV.
    """


@register("adaptive_exponential", kind="soma")
@dataclass(frozen=True)
class AdaptiveExponentialSoma(ExponentialMembrane):
    """The AdEx model: an exponential soma with an adaptation current w, driven by its potential and its spikes.

    With v the potential above rest, one Euler step of dt, in this order::

        v'    = v + dt/tau (-v + slope exp((v - rheobase + rest) / slope) + resistance (current - w))
        spike = v' > threshold - rest,    and then v' = reset - rest
        w'    = w + dt/adaptation_tau (adaptation_subthreshold v' - w) + adaptation_delta spike

    Sources: `AdaptiveExponentialSoma` of Spark (Nogarx/Spark); Brette and Gerstner, J. Neurophysiol. 94 (2005) 3637;
    Gerstner et al., Neuronal Dynamics, chapter 6.1.

    State: `potential` (units,), mV above rest; `adaptation` (units,), w in pA.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike, mV.
        potential_tau: the time constant of the membrane, ms.
        resistance: the membrane resistance, GOhm.
        threshold: the spike threshold, mV.
        rheobase_threshold: the potential at which the exponential term takes over, mV.
        spike_slope: the sharpness of the upstroke, mV.
        adaptation_tau: the time constant of w, ms.
        adaptation_delta: the increase of w per spike, pA.
        adaptation_subthreshold: the coupling of w to the potential, nS.
    """

    adaptation_tau: float = field(default=100.0, metadata={"unit": "ms"})
    adaptation_delta: float = field(default=7.0, metadata={"unit": "pA"})
    adaptation_subthreshold: float = field(default=0.5, metadata={"unit": "nS"})

    def init(self, key: jax.Array, units: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state: at rest, without adaptation."""
        return {**super().init(key, units, dt=dt, dtype=dtype), "adaptation": jnp.zeros(units, dtype)}

    def step(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """Advance the state by one step."""
        w = state["adaptation"].astype(jnp.float32)
        after, spikes = super().step(state, current.astype(jnp.float32) - w, dt=dt)
        w = adapted(self, w, after["potential"].astype(jnp.float32), spikes, dt=dt)
        return {**after, "adaptation": w.astype(state["adaptation"].dtype)}, spikes

    def problems(self, *, dt: float) -> list[str]:
        """Report time constants or a slope that are not positive."""
        return [*super().problems(dt=dt), *not_positive(self, "adaptation_tau")]


def adapted(soma: Any, w: jax.Array, potential: jax.Array, spikes: jax.Array, *, dt: float) -> jax.Array:
    """Return the adaptation current after a step, in float32.

    Args:
        soma: the soma with the three settings of adaptation.
        w: the current before the step.
        potential: the potential after the reset.
        spikes: which neurons spiked.
        dt: the duration of a step, ms.
    """
    drawn = soma.adaptation_subthreshold * potential - w
    return w + (dt / soma.adaptation_tau) * drawn + jnp.where(spikes, soma.adaptation_delta, 0)
