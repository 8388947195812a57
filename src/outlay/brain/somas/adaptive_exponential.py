"""The adaptive exponential integrate-and-fire soma (AdEx)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.component import State
from outlay.brain.registry import register
from outlay.brain.somas.exponential import ExponentialSoma


@register("adaptive_exponential", kind="soma")
@dataclass(frozen=True)
class AdaptiveExponentialSoma(ExponentialSoma):
    """An exponential soma with a current w that grows with its potential and its spikes, and holds it back.

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
        potential_tau: time constant of the membrane, ms.
        resistance: of the membrane, GOhm.
        threshold: the potential above which it spikes, mV.
        rheobase_threshold: the potential at which the exponential takes over, mV.
        spike_slope: sharpness of the upstroke, mV.
        adaptation_tau: time constant of w, ms.
        adaptation_delta: how much a spike adds to w, pA.
        adaptation_subthreshold: how much w grows with the potential, nS.
    """

    adaptation_tau: float = field(default=100.0, metadata={"unit": "ms"})
    adaptation_delta: float = field(default=7.0, metadata={"unit": "pA"})
    adaptation_subthreshold: float = field(default=0.5, metadata={"unit": "nS"})

    def init(self, key: jax.Array, units: int, *, dt: float, dtype: Any) -> State:
        """At rest, without adaptation."""
        return {**super().init(key, units, dt=dt, dtype=dtype), "adaptation": jnp.zeros(units, dtype)}

    def step(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """One step."""
        w = state["adaptation"].astype(jnp.float32)
        after, spikes = super().step(state, current.astype(jnp.float32) - w, dt=dt)
        drawn = self.adaptation_subthreshold * after["potential"].astype(jnp.float32) - w
        w = w + (dt / self.adaptation_tau) * drawn + jnp.where(spikes, self.adaptation_delta, 0)
        return {**after, "adaptation": w.astype(state["adaptation"].dtype)}, spikes
