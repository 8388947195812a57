"""A spiker whose units integrate: regular spikes, at a rate that grows with the signal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.module import Module, State
from outlay.brain.port import Port, Shape
from outlay.brain.registry import register
from outlay.brain.spikers.spiker_settings import negative, not_positive

MS_PER_S = 1000.0


@register("linear_spiker")
@dataclass(frozen=True)
class LinearSpiker(Module):
    """One leaky unit for each number of the signal; a signal of 1 makes it spike at `max_freq`.

    With x the signal and e = exp(-dt/tau), in every step::

        ready = r >= cd
        v'    = e v + ready tau (1 - e) k x,    k = 1 + 1 / (exp((1000 - cd max_freq) / (tau max_freq)) - 1)
        spike = v' > tau, and then v' = 0
        r'    = 0 on a spike, else r + dt

    k is what brings the unit from 0 to its threshold tau in the time 1000/max_freq - cd that it has between two spikes.
    From Spark (Nogarx/Spark), `LinearSpiker`.

    Ports: `signal` (any shape, 0 to 1) -> `spikes` (the same shape).

    State: `potential` and `refractory` (ms since the last spike), each of the shape of the spikes.

    Attributes:
        tau: time constant of the units, ms.
        cd: time after a spike in which a unit takes nothing in, ms.
        max_freq: rate at a signal of 1, Hz.
    """

    tau: float = field(default=100.0, metadata={"unit": "ms"})
    cd: float = field(default=2.0, metadata={"unit": "ms"})
    max_freq: float = field(default=100.0, metadata={"unit": "Hz"})

    def inputs(self) -> Mapping[str, Port]:
        """It reads `signal`."""
        return {"signal": Port("values")}

    def outputs(self, shapes: Mapping[str, Shape]) -> Mapping[str, Port]:
        """It writes `spikes`."""
        return {"spikes": Port("spikes", self.cells(shapes["signal"]))}

    def init(self, key: jax.Array, shapes: Mapping[str, Shape], *, dt: float, dtype: Any) -> State:
        """All units at 0 and ready."""
        cells = self.cells(shapes["signal"])
        return {"potential": jnp.zeros(cells, dtype), "refractory": jnp.full(cells, self.cd, dtype)}

    def step(self, state: State, inputs: Mapping[str, jax.Array], *, dt: float) -> tuple[State, dict[str, jax.Array]]:
        """One step of dt ms."""
        potential, refractory = state["potential"], state["refractory"]
        decay = math.exp(-dt / self.tau)
        rise = self.tau * (1 - decay) * self._scale() * self.drive(inputs["signal"])
        potential = decay * potential + jnp.where(refractory >= self.cd, rise, 0).astype(potential.dtype)
        spikes = potential > self.tau
        after = {
            "potential": jnp.where(spikes, 0, potential),
            "refractory": jnp.where(spikes, 0, refractory + dt),
        }
        return after, {"spikes": spikes.astype(jnp.int8)}

    def problems(self, *, dt: float) -> list[str]:
        """Settings of the wrong sign, and a rate that the cooldown does not let it reach."""
        wrong = not_positive(self, "tau", "max_freq") + negative(self, "cd")
        if not wrong and self.cd * self.max_freq >= MS_PER_S:
            wrong.append(
                f"max_freq is {self.max_freq:g} Hz, but a cooldown cd of {self.cd:g} ms allows less than "
                f"{MS_PER_S / self.cd:g} Hz\na lower max_freq or a shorter cd"
            )
        return wrong

    def cells(self, signal: Shape) -> Shape:
        """The shape of the units for a signal."""
        return tuple(signal)

    def drive(self, signal: jax.Array) -> jax.Array:
        """What each unit takes in, 0 to 1."""
        return signal

    def _scale(self) -> float:
        return 1 + 1 / math.expm1((MS_PER_S - self.cd * self.max_freq) / (self.tau * self.max_freq))
