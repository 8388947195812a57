"""Leaky integrate-and-fire somas."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.module import State, negative, not_positive
from outlay.brain.registry import register
from outlay.brain.somas.soma import Soma, in_steps
from outlay.brain.traces import Tracer


@register("leaky", kind="soma")
@dataclass(frozen=True)
class LeakySoma(Soma):
    """A leaky integrator that spikes above its threshold.

    With v the potential above rest and e = exp(-dt/tau)::

        v'    = e v + (1 - e) tau resistance current
        spike = v' > threshold - rest,    and then v' = reset - rest

    tau × resistance × current is taken as a number of mV, as Spark does, whose unit of resistance is MOhm.

    Sources: `LeakySoma` of Spark (Nogarx/Spark); Gerstner et al., Neuronal Dynamics, chapter 1.3.

    State: `potential` (units,), mV above rest.

    Attributes:
        potential_rest: the potential at rest, mV.
        potential_reset: the potential after a spike, mV.
        potential_tau: time constant of the membrane, ms.
        resistance: of the membrane, MOhm.
        threshold: the potential above which it spikes, mV.
    """

    potential_rest: float = field(default=-60.0, metadata={"unit": "mV"})
    potential_reset: float = field(default=-50.0, metadata={"unit": "mV"})
    potential_tau: float = field(default=20.0, metadata={"unit": "ms"})
    resistance: float = field(default=100.0, metadata={"unit": "MOhm"})
    threshold: float = field(default=-40.0, metadata={"unit": "mV"})

    def step(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """One step."""
        charged = self._charged(state["potential"], current, True, dt)
        spikes = charged > self.threshold - self.potential_rest
        return {"potential": self._reset(spikes, charged, state["potential"].dtype)}, spikes

    def problems(self, *, dt: float) -> list[str]:
        """A time constant that is not positive."""
        return not_positive(self, "potential_tau")

    def _charged(self, potential: jax.Array, current: jax.Array, ready: Any, dt: float) -> jax.Array:
        """The potential before a spike; in float32, where a strong current has room until the reset."""
        decay = math.exp(-dt / self.potential_tau)
        gain = (1 - decay) * self.potential_tau * self.resistance
        return decay * potential.astype(jnp.float32) + jnp.where(ready, gain * current.astype(jnp.float32), 0)

    def _reset(self, spikes: jax.Array, charged: jax.Array, dtype: Any) -> jax.Array:
        return jnp.where(spikes, self.potential_reset - self.potential_rest, charged).astype(dtype)


@register("refractory_leaky", kind="soma")
@dataclass(frozen=True)
class RefractoryLeakySoma(LeakySoma):
    """A leaky integrator that after a spike takes nothing in for a while.

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
        potential_tau: time constant of the membrane, ms.
        resistance: of the membrane, MOhm.
        threshold: the potential above which it spikes, mV.
        cooldown: how long it takes nothing in after a spike, ms.
    """

    cooldown: float = field(default=2.0, metadata={"unit": "ms"})

    def init(self, key: jax.Array, units: int, *, dt: float, dtype: Any) -> State:
        """At rest."""
        cooldown = jnp.full(units, in_steps(self.cooldown, dt), jnp.int32)
        return {**super().init(key, units, dt=dt, dtype=dtype), "refractory": cooldown}

    def step(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """One step."""
        return self._refractory_step(state, current, self.threshold - self.potential_rest, dt)

    def problems(self, *, dt: float) -> list[str]:
        """A time constant that is not positive, a negative cooldown."""
        return [*super().problems(dt=dt), *negative(self, "cooldown")]

    def _refractory_step(self, state: State, current: jax.Array, threshold: Any, dt: float) -> tuple[State, jax.Array]:
        ready = self._ready(state["refractory"], dt)
        charged = self._charged(state["potential"], current, ready, dt)
        spikes = (charged > threshold) & ready
        after = {
            "potential": self._reset(spikes, charged, state["potential"].dtype),
            "refractory": jnp.where(spikes, 0, state["refractory"] + 1),
        }
        return after, spikes

    def _ready(self, refractory: jax.Array, dt: float) -> jax.Array:
        return refractory > in_steps(self.cooldown, dt)


@register("strict_refractory_leaky", kind="soma")
@dataclass(frozen=True)
class StrictRefractoryLeakySoma(RefractoryLeakySoma):
    """A leaky integrator that after a spike is held at its reset for a while.

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
        potential_tau: time constant of the membrane, ms.
        resistance: of the membrane, MOhm.
        threshold: the potential above which it spikes, mV.
        cooldown: how long it is held after a spike, ms.
    """

    def _ready(self, refractory: jax.Array, dt: float) -> jax.Array:
        return refractory >= in_steps(self.cooldown, dt)

    def _charged(self, potential: jax.Array, current: jax.Array, ready: Any, dt: float) -> jax.Array:
        held = self.potential_reset - self.potential_rest
        return jnp.where(ready, super()._charged(potential, current, ready, dt), held)


@register("adaptive_leaky", kind="soma")
@dataclass(frozen=True)
class AdaptiveLeakySoma(RefractoryLeakySoma):
    """A leaky integrator whose threshold jumps at each of its spikes, and decays back.

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
        potential_tau: time constant of the membrane, ms.
        resistance: of the membrane, MOhm.
        threshold: the potential above which it spikes when it has not spiked for long, mV.
        cooldown: how long it takes nothing in after a spike, ms.
        threshold_tau: time constant of the threshold, ms.
        threshold_delta: how much a spike adds to the threshold, mV.
    """

    threshold_tau: float = field(default=20.0, metadata={"unit": "ms"})
    threshold_delta: float = field(default=100.0, metadata={"unit": "mV"})

    def init(self, key: jax.Array, units: int, *, dt: float, dtype: Any) -> State:
        """At rest, with the threshold at its base."""
        return {
            **super().init(key, units, dt=dt, dtype=dtype),
            "threshold": self._threshold_tracer().init((units,), dtype),
        }

    def step(self, state: State, current: jax.Array, *, dt: float) -> tuple[State, jax.Array]:
        """One step."""
        after, spikes = self._refractory_step(state, current, state["threshold"], dt)
        return {**after, "threshold": self._threshold_tracer().step(state["threshold"], spikes, dt=dt)}, spikes

    def problems(self, *, dt: float) -> list[str]:
        """Time constants that are not positive, a negative cooldown."""
        return [*super().problems(dt=dt), *not_positive(self, "threshold_tau")]

    def _threshold_tracer(self) -> Tracer:
        return Tracer(self.threshold_tau, self.threshold_delta, self.threshold - self.potential_rest)
