"""Leaky integrate-and-fire somas."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.module import State, negative, not_positive
from outlay.brain.registry import register
from outlay.brain.somas.soma import AdaptiveThreshold, Membrane, Refractory, in_steps
from outlay.brain.traces import decay_of

IN_MOHM = (
    'soma type = "lif" for a resistance in MOhm; here it is divided by potential_tau, as in Spark: 100 MOhm at a tau '
    'of 20 ms are "0.005 GOhm/ms"'
)
"""What to write for a resistance in MOhm."""


@dataclass(frozen=True)
class LeakyMembrane(Membrane, abc.ABC):
    """The equation of a leaky membrane in Spark's convention, and its settings; see `LeakySoma`."""

    potential_rest: float = field(default=-60.0, metadata={"unit": "mV"})
    potential_reset: float = field(default=-50.0, metadata={"unit": "mV"})
    potential_tau: float = field(default=20.0, metadata={"unit": "ms"})
    resistance: float = field(default=100.0, metadata={"unit": "GOhm/ms", "fix": IN_MOHM})
    threshold: float = field(default=-40.0, metadata={"unit": "mV"})

    def charge(self, state: State, current: jax.Array, ready: Any, *, dt: float) -> jax.Array:
        """Return the potential before a reset, in float32, since a strong current could overflow a narrower dtype."""
        decay = decay_of(dt, self.potential_tau)
        gain = self.gain(1 - decay)
        taken = jnp.where(ready, gain * current.astype(jnp.float32), 0)
        return decay * state["potential"].astype(jnp.float32) + taken

    def gain(self, share: Any) -> Any:
        """Return a share of the potential in mV that a constant current of 1 pA leads to: in Spark's convention."""
        return share * self.potential_tau * self.resistance

    def problems(self, *, dt: float) -> list[str]:
        """Report a time constant that is not positive, and a negative resistance."""
        return not_positive(self, "potential_tau") + negative(self, "resistance")


@register("leaky", kind="soma")
@dataclass(frozen=True)
class LeakySoma(LeakyMembrane):
    """The leaky integrate-and-fire model.

    With v the potential above rest and e = exp(-dt/tau)::

        v'    = e v + (1 - e) tau resistance current
        spike = v' > threshold - rest,    and then v' = reset - rest

    tau × resistance × current is in mV, as in Spark: what is called resistance is divided by tau, in GOhm/ms. `LIFSoma`
    takes a membrane's resistance in MOhm.

    Sources: `LeakySoma` of Spark (Nogarx/Spark); Gerstner et al., Neuronal Dynamics, chapter 1.3.

    State: `potential` (units,), mV above rest.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike, mV.
        potential_tau: the time constant of the membrane, ms.
        resistance: the membrane resistance over its time constant, as in Spark, GOhm/ms.
        threshold: the spike threshold, mV.
    """


@register("refractory_leaky", kind="soma")
@dataclass(frozen=True)
class RefractoryLeakySoma(Refractory, LeakyMembrane):
    """A leaky soma that ignores its input for a refractory time after each spike.

    With c = round(cooldown/dt), n the steps since the last spike, v the potential above rest and e = exp(-dt/tau)::

        ready = n > c
        v'    = e v + ready (1 - e) tau resistance current
        spike = v' > threshold - rest and ready,    and then v' = reset - rest
        n'    = 0 on a spike, else n + 1;           n = c at first

    Sources: `RefractoryLeakySoma` of Spark (Nogarx/Spark); Gerstner et al., Neuronal Dynamics, chapter 1.3.

    State: `potential` (units,), mV above rest; `refractory` (units,), the steps n.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike, mV.
        potential_tau: the time constant of the membrane, ms.
        resistance: the membrane resistance over its time constant, as in Spark, GOhm/ms.
        threshold: the spike threshold, mV.
        cooldown: the refractory time after a spike, ms.
    """


@register("strict_refractory_leaky", kind="soma")
@dataclass(frozen=True)
class StrictRefractoryLeakySoma(Refractory, LeakyMembrane):
    """A leaky soma that stays at its reset for a refractory time after each spike.

    With c = round(cooldown/dt), n the steps since the last spike, v the potential above rest and e = exp(-dt/tau)::

        ready = n >= c
        v'    = e v + (1 - e) tau resistance current if ready, else reset - rest
        spike = v' > threshold - rest and ready,    and then v' = reset - rest
        n'    = 0 on a spike, else n + 1;           n = c at first

    Sources: `StrictRefractoryLeakySoma` of Spark (Nogarx/Spark); Gerstner et al., Neuronal Dynamics, chapter 1.3.

    State: `potential` (units,), mV above rest; `refractory` (units,), the steps n.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike and while it is refractory, mV.
        potential_tau: the time constant of the membrane, ms.
        resistance: the membrane resistance over its time constant, as in Spark, GOhm/ms.
        threshold: the spike threshold, mV.
        cooldown: the time at the reset after a spike, ms.
    """

    def ready(self, refractory: jax.Array, dt: float) -> jax.Array:
        """Return which neurons are ready: one step earlier than for other refractory membranes."""
        return refractory >= in_steps(self.cooldown, dt)

    def charge(self, state: State, current: jax.Array, ready: Any, *, dt: float) -> jax.Array:
        """Return the potential before a reset; it stays at the reset while refractory."""
        return jnp.where(ready, super().charge(state, current, ready, dt=dt), self.levels[0])


@register("adaptive_leaky", kind="soma")
@dataclass(frozen=True)
class AdaptiveLeakySoma(AdaptiveThreshold, LeakyMembrane):
    """A leaky soma whose threshold jumps at each spike, and decays back.

    With c = round(cooldown/dt), n the steps since the last spike, v the potential above rest and e = exp(-dt/tau)::

        ready = n > c
        v'    = e v + ready (1 - e) tau resistance current
        spike = v' > θ and ready,             and then v' = reset - rest
        n'    = 0 on a spike, else n + 1;     n = c at first
        θ'    = Tracer(threshold_tau, scale = threshold_delta, base = threshold - rest) of the spike

    Sources: `AdaptiveLeakySoma` of Spark (Nogarx/Spark); Gerstner et al., Neuronal Dynamics, chapter 5.1.

    State: `potential` (units,), mV above rest; `refractory` (units,), the steps n; `threshold` (units,), θ in mV.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike, mV.
        potential_tau: the time constant of the membrane, ms.
        resistance: the membrane resistance over its time constant, as in Spark, GOhm/ms.
        threshold: the base of the spike threshold, mV.
        cooldown: the refractory time after a spike, ms.
        threshold_tau: the time constant of the threshold, ms.
        threshold_delta: the increase of the threshold per spike, mV.
    """
