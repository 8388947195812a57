"""Somas composed of a membrane equation and optional mechanisms."""

from __future__ import annotations

import abc
import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.module import State, negative, not_positive
from outlay.brain.registry import register
from outlay.brain.somas.exponential import ExponentialMembrane, adapted
from outlay.brain.somas.izhikevich import IzhikevichMembrane
from outlay.brain.somas.leaky import LeakyMembrane
from outlay.brain.somas.soma import Membrane, in_steps, off_the_grid
from outlay.brain.traces import Tracer


@dataclass(frozen=True)
class Mechanisms(Membrane, abc.ABC):
    """Four optional mechanisms around a membrane equation; each is active if its first setting is not None.

    With n the steps since the last spike (initially as many as any mechanism waits for), v the potential and I the
    current, in this order::

        I'    = I if n >= round(cooldown/dt), else 0                      (cooldown)
        I'    = I' - w                                                    (adaptation)
        v'    = the equation of the membrane, with I'
        v'    = reset unless n >= round(clamp_duration/dt)                (clamp)
        spike = v' > threshold + θ                                        (adaptive threshold)
                and n >= round(cooldown/dt),     and then v' = reset      (cooldown)
        n'    = 0 on a spike, else n + 1
        θ'    = Tracer(threshold_tau, scale = threshold_delta) of the spike
        w'    = w + dt/adaptation_tau (adaptation_subthreshold v' - w) + adaptation_delta spike

    Source: `AdaptiveSoma` of Spark (Nogarx/Spark) since 1.1.1.

    Attributes:
        cooldown: the refractory time after a spike, ms; None for none.
        clamp_duration: the time at the reset after a spike, ms; None for none.
        threshold_delta: the increase of the threshold per spike, mV; None for a fixed threshold.
        threshold_tau: the time constant of the threshold, ms.
        adaptation_delta: the increase of the adaptation current w per spike, pA; None for no adaptation.
        adaptation_tau: the time constant of w, ms.
        adaptation_subthreshold: the coupling of w to the potential, nS.
    """

    cooldown: float | None = field(default=None, metadata={"unit": "ms"}, kw_only=True)
    clamp_duration: float | None = field(default=None, metadata={"unit": "ms"}, kw_only=True)
    threshold_delta: float | None = field(default=None, metadata={"unit": "mV"}, kw_only=True)
    threshold_tau: float = field(default=20.0, metadata={"unit": "ms"}, kw_only=True)
    adaptation_delta: float | None = field(default=None, metadata={"unit": "pA"}, kw_only=True)
    adaptation_tau: float = field(default=100.0, metadata={"unit": "ms"}, kw_only=True)
    adaptation_subthreshold: float = field(default=0.5, metadata={"unit": "nS"}, kw_only=True)

    def init(self, key: jax.Array, units: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state: at rest, ready, and without adaptation."""
        state = super().init(key, units, dt=dt, dtype=dtype)
        if self._waits:
            longest = functools.reduce(
                jnp.maximum, [jnp.asarray(in_steps(time, dt), jnp.int32) for time in self._waits]
            )
            state["since_spike"] = jnp.broadcast_to(longest, units)
        if self.threshold_delta is not None:
            state["threshold"] = jnp.zeros(units, dtype)
        if self.adaptation_delta is not None:
            state["adaptation"] = jnp.zeros(units, dtype)
        return state

    def step(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """Advance the state by one step."""
        ready, released = _over(state, self.cooldown, dt), _over(state, self.clamp_duration, dt)
        current = jnp.where(ready, current.astype(jnp.float32), 0)
        if self.adaptation_delta is not None:
            current = current - state["adaptation"].astype(jnp.float32)
        charged = self.charge(state, current, True, dt=dt)
        charged = jnp.where(released, charged, self.levels[0])
        # The cooldown suppresses the spike but not the upstroke, which could overflow during it.
        charged = jnp.minimum(charged, jnp.finfo(state["potential"].dtype).max)
        added = 0 if self.threshold_delta is None else state["threshold"].astype(jnp.float32)
        spikes = (charged > self.levels[1] + added) & ready
        potential = jnp.where(spikes, self.levels[0], charged)
        after = self.advance(state, charged, potential, spikes, dt=dt)
        if self._waits:
            # The counter stops before it overflows.
            most = jnp.iinfo(jnp.int32).max - 1
            after["since_spike"] = jnp.where(spikes, 0, jnp.minimum(state["since_spike"], most) + 1)
        if self.threshold_delta is not None:
            tracer = Tracer(self.threshold_tau, self.threshold_delta)
            after["threshold"] = tracer.step(state["threshold"], spikes, dt=dt)
        if self.adaptation_delta is not None:
            w = adapted(self, state["adaptation"].astype(jnp.float32), potential, spikes, dt=dt)
            after["adaptation"] = w.astype(state["adaptation"].dtype)
        return after, spikes

    def problems(self, *, dt: float) -> list[str]:
        """Report the problems of the equation, and times of the wrong sign."""
        times = [name for name in ("cooldown", "clamp_duration") if getattr(self, name) is not None]
        wrong = not_positive(self, "threshold_tau", "adaptation_tau")
        wrong += negative(self, *times) or off_the_grid(self, dt, *times)
        return [*super().problems(dt=dt), *wrong]

    @property
    def _waits(self) -> list[Any]:
        return [time for time in (self.cooldown, self.clamp_duration) if time is not None]


def _over(state: State, time: Any, dt: float) -> jax.Array | bool:
    """Return whether a duration has passed since the last spike; True if the duration is None."""
    return True if time is None else state["since_spike"] >= in_steps(time, dt)


@register("composed_leaky", kind="soma")
@dataclass(frozen=True)
class ComposedLeakySoma(Mechanisms, LeakyMembrane):
    """A leaky integrate-and-fire soma with any of four mechanisms.

    The equation of the membrane, with v the potential above rest and e = exp(-dt/tau), is that of `LeakySoma`::

        v' = e v + (1 - e) tau resistance I'

    and the mechanisms, in the order in which they act, are those of `Mechanisms`: cooldown, adaptation, clamp, adaptive
    threshold.

    Sources: `AdaptiveLeakySoma` of Spark (Nogarx/Spark) since 1.1.1, where the resistance is tau × ours; Gerstner et
    al., Neuronal Dynamics, chapters 1.3, 5.1 and 6.1.

    State: `potential` (units,), mV above rest; and for active mechanisms `since_spike` (units,), steps; `threshold`
    (units,), the increase of the threshold, mV; `adaptation` (units,), w in pA.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike, mV.
        potential_tau: the time constant of the membrane, ms.
        resistance: the membrane resistance over its time constant, as in Spark, GOhm/ms.
        threshold: the base of the spike threshold, mV.
        cooldown: the refractory time after a spike, ms; None for none.
        clamp_duration: the time at the reset after a spike, ms; None for none.
        threshold_delta: the increase of the threshold per spike, mV; None for a fixed threshold.
        threshold_tau: the time constant of the threshold, ms.
        adaptation_delta: the increase of the adaptation current w per spike, pA; None for no adaptation.
        adaptation_tau: the time constant of w, ms.
        adaptation_subthreshold: the coupling of w to the potential above rest, nS.
    """


@register("composed_exponential", kind="soma")
@dataclass(frozen=True)
class ComposedExponentialSoma(Mechanisms, ExponentialMembrane):
    """An exponential soma with any of four mechanisms; with adaptation, the AdEx model.

    The equation of the membrane, with v the potential above rest, is that of `ExponentialSoma`::

        v' = v + dt/tau (-v + slope exp((v - rheobase + rest) / slope) + resistance I')

    and the mechanisms, in the order in which they act, are those of `Mechanisms`: cooldown, adaptation, clamp, adaptive
    threshold.

    Sources: `AdaptiveExponentialSoma` of Spark (Nogarx/Spark) since 1.1.1; Brette and Gerstner, J. Neurophysiol. 94
    (2005) 3637; Gerstner et al., Neuronal Dynamics, chapters 5.2 and 6.1.

    State: `potential` (units,), mV above rest; and for active mechanisms `since_spike` (units,), steps; `threshold`
    (units,), the increase of the threshold, mV; `adaptation` (units,), w in pA.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike, mV.
        potential_tau: the time constant of the membrane, ms.
        resistance: the membrane resistance, GOhm.
        threshold: the base of the spike threshold, mV.
        rheobase_threshold: the potential at which the exponential term takes over, mV.
        spike_slope: the sharpness of the upstroke, mV.
        cooldown: the refractory time after a spike, ms; None for none.
        clamp_duration: the time at the reset after a spike, ms; None for none.
        threshold_delta: the increase of the threshold per spike, mV; None for a fixed threshold.
        threshold_tau: the time constant of the threshold, ms.
        adaptation_delta: the increase of the adaptation current w per spike, pA; None for no adaptation.
        adaptation_tau: the time constant of w, ms.
        adaptation_subthreshold: the coupling of w to the potential above rest, nS.
    """


@register("composed_izhikevich", kind="soma")
@dataclass(frozen=True)
class ComposedIzhikevichSoma(Mechanisms, IzhikevichMembrane):
    """Izhikevich's soma with any of four mechanisms.

    The equations of the membrane, with V the absolute potential, are those of `IzhikevichSoma`, where u integrates the
    potential after a clamp and before the reset::

        V' = V + dt (0.04 V² + 5 V + 140 - u + resistance I')
        u' = u + dt a (b V' - u),    and on a spike u' = u' + d

    and the mechanisms, in the order in which they act, are those of `Mechanisms`: cooldown, adaptation, clamp, adaptive
    threshold.

    Sources: `AdaptiveIzhikevichSoma` of Spark (Nogarx/Spark); Izhikevich, IEEE Trans. Neural Networks 14 (2003) 1569.

    State: `potential` (units,), mV above rest; `recovery` (units,), u; and for active mechanisms `since_spike`
    (units,), steps; `threshold` (units,), the increase of the threshold, mV; `adaptation` (units,), w in pA.

    Attributes:
        potential_rest: the initial potential, mV.
        potential_reset: the potential after a spike, mV.
        resistance: the factor of the current; the paper's input current has no unit.
        threshold: the base of the spike threshold, mV.
        recovery_timescale: the rate of the recovery variable u (the paper's a), 1/ms.
        recovery_sensitivity: the sensitivity of u to the potential (the paper's b).
        recovery_update: the increase of u per spike (the paper's d).
        cooldown: the refractory time after a spike, ms; None for none.
        clamp_duration: the time at the reset after a spike, ms; None for none.
        threshold_delta: the increase of the threshold per spike, mV; None for a fixed threshold.
        threshold_tau: the time constant of the threshold, ms.
        adaptation_delta: the increase of the adaptation current w per spike, pA; None for no adaptation.
        adaptation_tau: the time constant of w, ms.
        adaptation_subthreshold: the coupling of w to the absolute potential, nS.
    """
