"""Izhikevich's soma."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.module import State, negative
from outlay.brain.registry import register
from outlay.brain.somas.soma import Membrane


@dataclass(frozen=True)
class IzhikevichMembrane(Membrane, abc.ABC):
    """The two equations of the Izhikevich model, and their settings; see `IzhikevichSoma`."""

    potential_rest: float = field(default=-65.0, metadata={"unit": "mV"})
    potential_reset: float = field(default=-65.0, metadata={"unit": "mV"})
    resistance: float = 1.0
    threshold: float = field(default=30.0, metadata={"unit": "mV"})
    recovery_timescale: float = 0.02
    recovery_sensitivity: float = 0.2
    recovery_update: float = 2.0

    def init(self, key: jax.Array, units: int, *, dt: float, dtype: Any) -> State:
        """Return the initial state: at rest."""
        recovery = jnp.full(units, self.recovery_sensitivity * self.potential_rest, dtype)
        return {**super().init(key, units, dt=dt, dtype=dtype), "recovery": recovery}

    @property
    def levels(self) -> tuple[float, float]:
        """Return reset and threshold of the absolute potential."""
        return self.potential_reset, self.threshold

    def problems(self, *, dt: float) -> list[str]:
        """Report a negative resistance."""
        return negative(self, "resistance")

    def charge(self, state: State, current: jax.Array, ready: Any, *, dt: float) -> jax.Array:
        """Return the absolute potential before a reset, in float32: the first equation."""
        u = state["recovery"].astype(jnp.float32)
        v = state["potential"].astype(jnp.float32) + self.potential_rest
        driven = self.resistance * jnp.where(ready, current, 0).astype(jnp.float32)
        v = v + dt * (0.04 * v * v + 5 * v + 140 - u + driven)
        # Clip: a potential far above the threshold is reset anyway, but must not make u infinite.
        return jnp.minimum(v, jnp.finfo(jnp.float16).max)

    def advance(
        self, state: State, charged: jax.Array, potential: jax.Array, spikes: jax.Array, *, dt: float
    ) -> dict[str, jax.Array]:
        """Return the potential above rest, and u: the second equation, which uses the potential before the reset."""
        u = state["recovery"].astype(jnp.float32)
        u = u + dt * self.recovery_timescale * (self.recovery_sensitivity * charged - u)
        dtype = state["potential"].dtype
        return {
            "potential": (potential - self.potential_rest).astype(dtype),
            "recovery": jnp.where(spikes, u + self.recovery_update, u).astype(dtype),
        }


@register("izhikevich", kind="soma")
@dataclass(frozen=True)
class IzhikevichSoma(IzhikevichMembrane):
    """The Izhikevich model: two equations that reproduce the firing patterns of many kinds of neurons.

    With V the potential, one Euler step of dt, in this order::

        V' = V + dt (0.04 V² + 5 V + 140 - u + resistance current)
        u' = u + dt a (b V' - u)
        spike = V' > threshold,    and then V' = reset (the paper's c), u' = u' + d

    with a = recovery_timescale, b = recovery_sensitivity, d = recovery_update; u = b rest at first.

    Source: Izhikevich, IEEE Trans. Neural Networks 14 (2003) 1569, and `IzhikevichSoma` of Spark (Nogarx/Spark) for the
    names.

    State: `potential` (units,), mV above rest; `recovery` (units,), u.

    Attributes:
        potential_rest: the initial potential, mV.
        potential_reset: the potential after a spike, mV.
        resistance: the factor of the current; the paper's input current has no unit.
        threshold: the spike threshold, mV.
        recovery_timescale: the rate of the recovery variable u, 1/ms.
        recovery_sensitivity: the sensitivity of u to the potential.
        recovery_update: the increase of u per spike.
    """
