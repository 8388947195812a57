"""The leaky integrate-and-fire soma in physical units."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outlay.brain.registry import register
from outlay.brain.somas.composed import Mechanisms
from outlay.brain.somas.leaky import LeakyMembrane

MV_PER_MOHM_PA = 1e-3


@register("lif", kind="soma")
@dataclass(frozen=True)
class LIFSoma(Mechanisms, LeakyMembrane):
    """The leaky integrate-and-fire model in physical units, with any of four mechanisms.

    The equation of the membrane, with v the potential above rest and e = exp(-dt/tau), is::

        v' = e v + (1 - e) resistance I'

    so that a constant current of 100 pA into 100 MOhm leads to 10 mV. The mechanisms, in the order in which they act,
    are those of `Mechanisms`: cooldown, adaptation, clamp, adaptive threshold.

    Sources: Gerstner et al., Neuronal Dynamics, chapters 1.3, 5.1 and 6.1.

    State: `potential` (units,), mV above rest; and for active mechanisms `since_spike` (units,), steps; `threshold`
    (units,), the increase of the threshold, mV; `adaptation` (units,), w in pA.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike, mV.
        potential_tau: the time constant of the membrane, ms.
        resistance: the membrane resistance, MOhm.
        threshold: the base of the spike threshold, mV.
        cooldown: the refractory time after a spike, ms; None for none.
        clamp_duration: the time at the reset after a spike, ms; None for none.
        threshold_delta: the increase of the threshold per spike, mV; None for a fixed threshold.
        threshold_tau: the time constant of the threshold, ms.
        adaptation_delta: the increase of the adaptation current w per spike, pA; None for no adaptation.
        adaptation_tau: the time constant of w, ms.
        adaptation_subthreshold: the coupling of w to the potential above rest, nS.

    Example:
        >>> soma, current = outlay.brain.LIFSoma(resistance=100.0, potential_tau=20.0), jnp.full(1, 100.0)
        >>> state = soma.init(jax.random.key(0), 1, dt=1.0, dtype=jnp.float32)
        >>> for _ in range(200):
        ...     state, spikes = soma.step(state, current, dt=1.0)
        >>> round(float(state["potential"][0]), 2)  # mV
        10.0
    """

    potential_rest: float = field(default=-70.0, metadata={"unit": "mV"})
    potential_reset: float = field(default=-70.0, metadata={"unit": "mV"})
    resistance: float = field(default=100.0, metadata={"unit": "MOhm"})
    threshold: float = field(default=-50.0, metadata={"unit": "mV"})

    def gain(self, share: Any) -> Any:
        """Return a share of the potential in mV that a constant current of 1 pA leads to."""
        return share * (MV_PER_MOHM_PA * self.resistance)
