"""Traces: what spikes leave behind, decaying with time.

A trace is described by its settings, here, and is an array, or a dictionary of arrays, in the state of whoever has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Tracer:
    """An exponential trace.

    In every step of dt ms it takes x in::

        t' = base + exp(-dt/tau) (t - base) + scale x,    t = base at first

    Source: `Tracer` of Spark (Nogarx/Spark).

    Attributes:
        tau: time constant of the decay, ms.
        scale: how much one spike leaves.
        base: what it decays to.

    Example:
        >>> from outlay.brain import Tracer
        >>> float(Tracer(tau=20.0, scale=2.0).step(jnp.zeros(()), 1.0, dt=1.0))
        2.0
    """

    tau: float
    scale: float = 1.0
    base: float = 0.0

    def init(self, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """The trace before the first step."""
        return jnp.full(shape, self.base, dtype)

    def step(self, trace: jax.Array, x: Any, *, dt: float) -> jax.Array:
        """The trace after a step, of the same shape and dtype."""
        left = math.exp(-dt / self.tau) * (trace - self.base if self.base else trace)
        taken = self.scale * jnp.asarray(x, trace.dtype)
        return (left + taken + self.base if self.base else left + taken).astype(trace.dtype)


@dataclass(frozen=True)
class RDTracer:
    """A trace that rises before it decays: the difference of two exponential ones.

    In every step::

        decay = Tracer(tau_decay, scale_decay, base_decay)
        rise  = Tracer(r, scale_rise, base_rise),    r = tau_rise tau_decay / (tau_rise + tau_decay)
        value = decay - rise

    Source: `RDTracer` of Spark (Nogarx/Spark).

    Attributes:
        tau_rise: time constant of the rise, ms.
        tau_decay: time constant of the decay, ms.
        scale_rise: how much one spike leaves in the rising part.
        scale_decay: how much one spike leaves in the decaying part.
        base_rise: what the rising part decays to.
        base_decay: what the decaying part decays to.
    """

    tau_rise: float
    tau_decay: float
    scale_rise: float = 1.0
    scale_decay: float = 1.0
    base_rise: float = 0.0
    base_decay: float = 0.0

    @property
    def rise(self) -> Tracer:
        """The part that is taken away."""
        coupled = self.tau_rise * self.tau_decay / (self.tau_rise + self.tau_decay)
        return Tracer(coupled, self.scale_rise, self.base_rise)

    @property
    def decay(self) -> Tracer:
        """The part that stays longer."""
        return Tracer(self.tau_decay, self.scale_decay, self.base_decay)

    def init(self, shape: tuple[int, ...], dtype: Any) -> dict[str, jax.Array]:
        """Both parts before the first step."""
        return {"rise": self.rise.init(shape, dtype), "decay": self.decay.init(shape, dtype)}

    def step(self, trace: dict[str, jax.Array], x: Any, *, dt: float) -> dict[str, jax.Array]:
        """Both parts after a step."""
        return {
            "rise": self.rise.step(trace["rise"], x, dt=dt),
            "decay": self.decay.step(trace["decay"], x, dt=dt),
        }

    def value(self, trace: dict[str, jax.Array]) -> jax.Array:
        """The trace itself."""
        return trace["decay"] - trace["rise"]


@dataclass(frozen=True)
class RFSTracer:
    """A trace that rises, then decays fast at first and slowly later: two that rise and decay, mixed.

    In every step::

        value = alpha fast + (1 - alpha) slow

    Source: `RFSTracer` of Spark (Nogarx/Spark).

    Attributes:
        alpha: the share of the fast one, from 0 to 1.
        fast: the one that decays fast.
        slow: the one that decays slowly.
    """

    alpha: float
    fast: RDTracer
    slow: RDTracer

    def init(self, shape: tuple[int, ...], dtype: Any) -> dict[str, dict[str, jax.Array]]:
        """Both before the first step."""
        return {"fast": self.fast.init(shape, dtype), "slow": self.slow.init(shape, dtype)}

    def step(self, trace: dict[str, dict[str, jax.Array]], x: Any, *, dt: float) -> dict[str, dict[str, jax.Array]]:
        """Both after a step."""
        return {"fast": self.fast.step(trace["fast"], x, dt=dt), "slow": self.slow.step(trace["slow"], x, dt=dt)}

    def value(self, trace: dict[str, dict[str, jax.Array]]) -> jax.Array:
        """The trace itself."""
        return self.alpha * self.fast.value(trace["fast"]) + (1 - self.alpha) * self.slow.value(trace["slow"])
